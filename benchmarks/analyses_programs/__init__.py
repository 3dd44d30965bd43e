"""Analyses as an analyst would write them, each a program for one client and simulated clients' data."""

from collections.abc import Mapping

from examples.example import Example

from analyses_programs import counts, curves, latents, ratings, survival

_MODULES = (survival, ratings, counts, curves, latents)
ANALYSES: Mapping[str, Example] = {example.name: example for module in _MODULES for example in module.ANALYSES}
