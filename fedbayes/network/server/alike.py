"""Whether sites have told of data that one model can take: the same arguments, with the same columns."""

from collections import Counter
from collections.abc import Sequence

from fedbayes.errors import ClientDataError
from fedbayes.network.charter import Hello
from fedbayes.problem.data.reading import check_like


def differences(hellos: Sequence[Hello]) -> str:
    """What differs, and at whom, in sentences; empty where all are alike.

    Those are compared with that most sites have: one who has mistaken a column is the one that is named.
    """
    if len(hellos) < 2:
        return ""
    counts = Counter(map(_layout, hellos))
    ((usual, _),) = counts.most_common(1)
    expected = next(hello for hello in hellos if _layout(hello) == usual)
    found = [_difference(expected, hello) for hello in hellos if hello is not expected]
    return " ".join(each for each in found if each)


def _difference(expected: Hello, hello: Hello) -> str:
    if told := _of_columns(expected, hello):
        return told
    try:
        check_like(expected.site, expected.stand_in(), hello.site, hello.stand_in())
    except ClientDataError as error:
        return str(error)
    return ""


def _of_columns(expected: Hello, hello: Hello) -> str:
    """Which named columns one has and the other has not."""
    for argument, kind in expected.arrays.items():
        other = hello.arrays.get(argument)
        if other is None or kind.labels is None or other.labels is None or set(kind.labels) == set(other.labels):
            continue
        lacks = [name for name in kind.labels if name not in other.labels]
        more = [name for name in other.labels if name not in kind.labels]
        parts = [f"lacks the column{_s(lacks)} {lacks}"] if lacks else []
        parts += [f"has the column{_s(more)} {more} that nobody else has"] if more else []
        return (
            f"Site '{hello.site}': its `{argument}` {' and '.join(parts)}. Site '{expected.site}' has the columns "
            f"{list(kind.labels)}, and all sites need the same ones in one order: correct the file of site "
            f"'{hello.site}', or what its `load_data` reads."
        )
    return ""


def _s(names: Sequence[str]) -> str:
    return "s" * (len(names) != 1)


def _layout(hello: Hello) -> tuple:
    """What must be the same."""
    arrays = [(name, len(kind.shape), kind.shape[1:], kind.labels) for name, kind in sorted(hello.arrays.items())]
    return (*arrays, *sorted(hello.static))
