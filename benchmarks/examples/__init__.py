"""NumPyro's example programs, each said anew for one client's data, and what the library makes of them."""

from collections.abc import Mapping

from examples import discrete, hierarchies, networks, regressions, series
from examples.example import Example

EXAMPLES: Mapping[str, Example] = {
    example.name: example
    for module in (regressions, hierarchies, discrete, series, networks)
    for example in module.EXAMPLES
}
