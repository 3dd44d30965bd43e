"""NumPyro's example programs, each said anew for one client's data, and what the library makes of them."""

from collections.abc import Mapping

from examples import (
    annotation,
    capture,
    chains,
    gaussian_processes,
    hierarchies,
    mixtures,
    networks,
    regressions,
    series,
)
from examples.example import Example

_MODULES = (
    regressions,
    hierarchies,
    annotation,
    capture,
    chains,
    mixtures,
    series,
    gaussian_processes,
    networks,
)
EXAMPLES: Mapping[str, Example] = {example.name: example for module in _MODULES for example in module.EXAMPLES}
