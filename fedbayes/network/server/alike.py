"""Whether sites have told of data that one model can take: the same arguments, with the same columns."""

from collections import Counter
from collections.abc import Sequence

from fedbayes.errors import ClientDataError
from fedbayes.network.charter import Hello
from fedbayes.problem.data.reading import check_like

_AXIS = "axis "  # how a label begins that names an array's axis and no column
_MOST = 30  # columns that are listed


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
        told = hello.arrays[argument].labels if argument in hello.arrays else None
        if kind.labels is None or told is None:
            continue
        mine, theirs = _columns(told), _columns(kind.labels)
        if set(mine) == set(theirs):
            continue
        lacks = [name for name in theirs if name not in mine]
        more = [name for name in mine if name not in theirs]
        parts = [f"lacks {_listed(lacks)}"] if lacks else []
        parts += [f"has {_listed(more)}, which site '{expected.site}' has not"] if more else []
        return (
            f"Site '{hello.site}': of the columns of `{argument}` it {' and '.join(parts)}. Site '{expected.site}' has "
            f"{_listed(theirs)}, and all sites need the same ones in one order: correct the file of site "
            f"'{hello.site}', or what its `load_data` reads."
        )
    return ""


def _columns(labels: Sequence[str]) -> list[str]:
    """Columns as files name them; those of an array bear the name of their axis."""
    if not any(label.startswith(_AXIS) for label in labels):
        return list(labels)
    return [label.partition("=")[2] for label in labels if not label.startswith(_AXIS)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(map(repr, names[:_MOST])) + more


def _layout(hello: Hello) -> tuple:
    """What must be the same."""
    arrays = [(name, len(kind.shape), kind.shape[1:], kind.labels) for name, kind in sorted(hello.arrays.items())]
    return (*arrays, *sorted(hello.static))
