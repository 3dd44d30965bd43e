"""The command ``fedbayes``, and the demonstration."""

from fedbayes.cli.main import app

__all__ = ["app"]
