"""A policy by which every study may be run, for sites' configurations."""

from pathlib import Path

PERMISSIVE = {"policy": str(Path(__file__).with_name("permissive.toml"))}
