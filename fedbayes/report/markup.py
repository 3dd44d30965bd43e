"""HTML by small functions: each takes texts, which it escapes, and gives markup that is well-formed XML too."""

from collections.abc import Collection, Sequence
from html import escape
from typing import NewType
from unicodedata import category

Markup = NewType("Markup", str)

UNKNOWN = "\N{EN DASH}"
_REVERSING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}  # a name could turn the line around


def words(text: object) -> Markup:
    """A text as markup."""
    return Markup(escape(cleaned(str(text))))


def cleaned(text: str) -> str:
    """A text in which characters that no HTML may hold, or that change the order of others, are replaced."""
    return "".join("\N{REPLACEMENT CHARACTER}" if _is_unfit(each) else each for each in text)


def _is_unfit(character: str) -> bool:
    if character in _REVERSING:
        return True
    return category(character) in ("Cc", "Cs", "Cn") and character not in "\n\t"


def element(tag: str, *inside: Markup, **attributes: str) -> Markup:
    """An element; a trailing underscore in an attribute's name is dropped, and others are hyphens."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    given = "".join(f' {name}="{words(value)}"' for name, value in named.items())
    return Markup(f"<{tag}{given}>{''.join(inside)}</{tag}>")


def paragraph(text: str) -> Markup:
    """A paragraph; what stands between backticks is code."""
    return element("p", marked(text))


def marked(text: str) -> Markup:
    """A text in which backticks mark code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a lone backtick means itself
        return words(text)
    return Markup("".join(element("code", words(part)) if i % 2 else words(part) for i, part in enumerate(parts)))


def signed(text: str) -> str:
    """A number as text with a minus sign, which is as wide as a digit, in place of a hyphen."""
    return text.replace("-", "\N{MINUS SIGN}")


def joined(*parts: Markup | None) -> Markup:
    """One after the other."""
    return Markup("".join(part for part in parts if part is not None))


def code(text: str, label: str) -> Markup:
    """A listing, whose long lines are wrapped."""
    return element("pre", element("code", words(text.strip("\n"))), role="region", aria_label=label)


def pairs(rows: Sequence[tuple[str, str]], label: str) -> Markup:
    """A table of two columns: what it is, and what there is to say of it."""
    lines = [element("tr", element("th", words(name), scope="row"), element("td", marked(said))) for name, said in rows]
    return element("table", element("tbody", *lines), class_="pairs", aria_label=label)


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    num_words: int = 1,
    less: Collection[int] = (),
) -> Markup:
    """A table that is scrolled sideways where it is too wide.

    Parameters
    ----------
    caption, head, rows
        What it shows.
    num_words
        So many columns, the first ones, are words.
    less
        Columns that narrow screens leave out, which the caption then says.
    """

    def kind(place: int) -> dict[str, str]:
        kinds = [*(["number"] if place >= num_words else []), *(["less"] if place in less else [])]
        return {"class_": " ".join(kinds)} if kinds else {}

    top = element("tr", *(element("th", words(name), scope="col", **kind(i)) for i, name in enumerate(head)))
    lines = [
        element(
            "tr",
            element("th", words(row[0]), scope="row"),
            *(element("td", words(cell), **kind(i)) for i, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    left_out = [element("span", words(_narrow(head, less)), class_="narrow")] if less else []
    titled = element("caption", words(caption), *left_out)
    whole = element("table", titled, element("thead", top), element("tbody", *lines))
    return element("div", whole, class_="wide", tabindex="0", role="region", aria_label=caption)


def _narrow(head: Sequence[str], less: Collection[int]) -> str:
    """What a narrow screen leaves out."""
    named = [name for place, name in enumerate(head) if place in less]
    return f" (on a wider screen and on paper also {', '.join(named)})"


def figure(picture: Markup, caption: str) -> Markup:
    """A picture with its caption."""
    return element("figure", picture, element("figcaption", marked(caption)))


def section(anchor: str, title: str, *inside: Markup) -> Markup:
    """A section of the report."""
    return element("section", element("h2", words(title), id=f"{anchor}-title"), *inside, id=anchor,
                   aria_labelledby=f"{anchor}-title")  # fmt: skip
