"""Tables as plain text, for what is read in a terminal and in a log, and as HTML, for a notebook."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table, each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def as_html_table(title: str, table: Sequence[Sequence[str]], below: Iterable[str] = ()) -> str:
    """A table with its title above, and further lines below it."""
    style = ' style="text-align: left"'
    cells = ["".join(f"<td{style}>{escape(cell)}</td>" for cell in line) for line in table]
    body = "".join(f"<tr>{line}</tr>" for line in cells)
    further = "".join(f"<p>{escape(line.strip())}</p>" for line in below)
    return f"<table><caption{style}>{escape(title)}</caption>{body}</table>{further}"
