"""Tables as plain text, for what an owner reads in a terminal and in a log."""

from collections.abc import Iterator, Sequence


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
