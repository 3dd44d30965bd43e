"""Groups of clients, such as cities and villages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedbayes.errors import did_you_mean

Groups = Mapping[str, Sequence[str]]


def check_groups(groups: Any) -> None:
    """Groups before the clients are known: a mapping, or ``None``.

    Raises
    ------
    ValueError
        They are something else.
    """
    if groups is not None and not isinstance(groups, Mapping):
        raise ValueError(
            f"`groups` is {groups!r}; write a mapping from each group to its clients, such as "
            '`{"cities": ["north", "south"], "villages": ["west"]}`, or leave it out.'
        )


def partition(groups: Groups | None, clients: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """The groups' names, and each client's group, shape ``(N,)``.

    Raises
    ------
    ValueError
        The groups are no mapping, or a client is in none of them, or in two, or is not known.
    """
    check_groups(groups)
    given: Mapping[str, Any] = {name: [name] for name in clients} if groups is None else groups
    homes: dict[str, list[str]] = {name: [] for name in clients}
    for group, members in given.items():
        members = [members] if isinstance(members, str) else members
        if not isinstance(members, Sequence | set | np.ndarray) or len(members) == 0:
            raise ValueError(f"Group '{group}' of `groups` is {members!r}; write the names of its clients.")
        for name in members:
            if str(name) not in homes:
                raise ValueError(_unknown_client(given, group, name, clients))
            homes[str(name)].append(str(group))
    wrong = {name: found for name, found in homes.items() if len(found) != 1}
    if wrong:
        name, found = next(iter(wrong.items()))
        where = f"in {found}" if found else "in none of them"
        raise ValueError(f"`groups` must hold each client once; '{name}' is {where}.")
    names = tuple(str(group) for group in given)
    if len(set(names)) < len(names):
        raise ValueError(f"Two groups of `groups` have the same name once written as text: {list(names)}.")
    return names, np.array([names.index(found[0]) for found in homes.values()])


def _unknown_client(given: Mapping[str, Any], group: str, name: Any, clients: Sequence[str]) -> str:
    """Why a name is no client: it may be that of a group, where the mapping was given the wrong way round."""
    if set(map(str, given)) <= set(clients):
        turned: dict[str, list[str]] = {}
        for client, groups in given.items():
            for own in [groups] if isinstance(groups, str) else groups:
                turned.setdefault(str(own), []).append(str(client))
        return f"`groups` is from clients to groups, and must be from groups to clients: write `groups={turned}`."
    return (
        f"Group '{group}' of `groups` has the client '{name}'; the clients are {list(clients)}."
        f"{did_you_mean(str(name), clients)}"
    )
