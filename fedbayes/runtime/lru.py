"""Values that are made once and kept for the process, up to a largest number of them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Values by key; when there are too many, the least recently used one is dropped.

    Parameters
    ----------
    most
        Values kept at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, build: Callable[[], T], valid: Callable[[T], bool] = lambda value: True) -> T:
        """The value of ``key``: the kept one if there is one and it is still valid, else what ``build`` makes.

        A key that can't be hashed is never kept.
        """
        try:
            hash(key)
        except TypeError:
            return build()
        if key not in self._values or not valid(self._values[key]):
            self._values[key] = build()
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return self._values[key]

    def __len__(self) -> int:
        """Number of values kept."""
        return len(self._values)

    def forget(self) -> None:
        """Let go of everything."""
        self._values.clear()
