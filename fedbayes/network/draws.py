"""Draws of the globals in a message: by their recipes, or, where there are none, as they are."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbayes.correction.recipe import Recipe

_MADE = "recipes"
_MOST = 8  # recipes in a message: a check takes at most three exchanges


def by_recipe(recipes: Sequence[Recipe], places: np.ndarray | None = None) -> dict[str, Any]:
    """What tells a client of the draws that it makes itself; with ``places (chain, num)`` of some of them."""
    return {_MADE: list(recipes)} | ({} if places is None else {"places": np.asarray(places, np.int32)})


def with_draws(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of a message with the draws of which it tells, ``shared`` of shape ``(chain, draw, d)``.

    Raises
    ------
    OtherDraws
        They can't be made here.
    ValueError
        It has no sound recipe.
    """
    parts: dict[str, dict[str, np.ndarray]] = {}
    others = {}
    for name, array in arrays.items():
        made, _, field = name.partition("/")
        if made == _MADE:
            number, _, field = field.partition("/")
            parts.setdefault(number, {})[field] = array
        else:
            others[name] = array
    if not parts:
        return others
    if len(parts) > _MOST:
        raise ValueError(f"A message has {len(parts)} recipes for draws; at most {_MOST} are read.")
    # one spelling of each number: "00" beside "0" would leave the order of draws to the order of the message's arrays,
    # of which masks know nothing
    numbers = [str(number) for number in range(len(parts))]
    if set(parts) != set(numbers):
        raise ValueError(f"A message numbers its recipes {sorted(parts)}; expected {numbers}.")
    recipes = [Recipe.read(parts[number]) for number in numbers]
    theta = np.concatenate([recipe.draws() for recipe in recipes], axis=1)
    places = others.pop("places", None)
    if places is not None:
        if places.dtype != np.int32 or places.ndim != 2 or np.any((places < 0) | (places >= theta.shape[1])):
            raise ValueError("A message names draws that its recipes do not make.")
        theta = np.take_along_axis(theta, places.astype(np.int64)[..., None], axis=1)
    return {**others, "shared": theta}
