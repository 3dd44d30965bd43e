"""What every benchmark needs to write its page: rows and tables, paragraphs, sections, and the machine it ran on."""

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from textwrap import fill
from typing import Any

MARK = "What the numbers say: "
"""Begins the note under a section's numbers: a section that is measured anew is cut there."""


def row(*cells: Any) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(columns: Sequence[str], right_from: int | None = None) -> list[str]:
    """The first two lines of a table; columns from ``right_from`` on are aligned to the right."""
    left = len(columns) if right_from is None else right_from
    return [row(*columns), "|" + "---|" * left + "---:|" * (len(columns) - left)]


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], right_from: int | None = None) -> list[str]:
    """A table, with the empty line that ends it."""
    return [*head(columns, right_from), *(row(*cells) for cells in rows), ""]


def wrapped(text: str) -> str:
    """A paragraph, with the empty line that ends it."""
    return fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False) + "\n"


def merged(
    page: str, sections: Mapping[str, str], opening: str, titles: Sequence[str], notes: Mapping[str, str]
) -> str:
    """A page of which some sections were written anew, and the others stay.

    Parameters
    ----------
    page
        What the file holds; empty where there is none.
    sections
        The new sections' bodies by title.
    opening
        The page's title and first words.
    titles
        All sections in their order.
    notes
        What follows a section's numbers, by title; each begins with ``MARK``.
    """
    known = dict(each.split("\n", 1) for each in ("\n" + page).split("\n## ")[1:]) | dict(sections)
    parts = [opening]
    for title in (title for title in titles if title in known):
        body = known[title].split(MARK)[0].strip()
        note = f"\n{notes[title]}" if title in notes else ""
        parts.append(f"\n## {title}\n\n{body}\n{note}")
    return "".join(parts)


def machine(packages: Sequence[str] = ("jax", "numpyro", "numpy", "fedbayes"), *, alone: bool = False) -> str:
    """The machine and the packages, as far as they matter; ``alone``: nothing else ran."""
    load = "with nothing else running" if alone else "shared with other work"
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}, float64, {load}."
