"""Programs with latents of each client, and everybody's data in one program, as one would write it with the data."""

from collections.abc import Mapping

from examples.example import Example

from hierarchies_programs import intercepts, persons, several

_MODULES = (intercepts, several, persons)
HIERARCHIES: Mapping[str, Example] = {example.name: example for module in _MODULES for example in module.HIERARCHIES}
