"""The text of a formula, cut at the places that are ours: outcome, groups, and the terms between them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from fedbayes.errors import FormulaError

MOST_CHARACTERS = 2_000
MOST_NESTED = 20
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'`"
_ADDITION = re.compile(r"^\s*(\w+)\s*\((.*)\)\s*$", re.DOTALL)


class GroupText(NamedTuple):
    """What stands in ``(effects | group)``; a double bar leaves correlations out."""

    effects: str
    group: str
    joint: bool


class FormulaText(NamedTuple):
    """A formula in parts, none of them read yet.

    Attributes
    ----------
    outcome
        Left of ``~``, without what follows its bar; empty where there is none.
    additions
        What follows the outcome's bar, such as ``trials(n)``: its argument by its name.
    common
        The terms that are the same for all, with their signs.
    groups
        The terms with a bar.
    """

    outcome: str
    additions: dict[str, str]
    common: str
    groups: tuple[GroupText, ...]


def cut(formula: str, *, outcome: bool = True) -> FormulaText:
    """Cut a formula into its parts.

    Parameters
    ----------
    formula
        Such as ``"y | trials(n) ~ x + (1 | site)"``.
    outcome
        Whether it has an outcome; a formula of ``sigma`` has none.

    Raises
    ------
    FormulaError
        It is too long or too deep, brackets or quotes are left open, or a bar stands where it means nothing.
    """
    if not isinstance(formula, str):
        raise FormulaError(f"The formula is a {type(formula).__name__}; write a text, such as 'sick ~ age + sex'.")
    if len(formula) > MOST_CHARACTERS:
        raise FormulaError(
            f"The formula has {len(formula):,} characters; at most {MOST_CHARACTERS:,} are read. Write a model with so "
            "many terms as a NumPyro program, with a matrix of covariates."
        )
    sides = _split(formula, "~")
    if len(sides) > 2:
        raise FormulaError(f"The formula {formula!r} has {len(sides) - 1} tildes; write one, 'outcome ~ terms'.")
    if outcome and (len(sides) == 1 or not sides[0].strip()):
        raise FormulaError(f"The formula {formula!r} has no outcome; write 'outcome ~ terms'.")
    if not outcome and len(sides) == 2 and sides[0].strip():
        raise FormulaError(f"The formula {formula!r} is of a parameter, which has no outcome; write '~ terms'.")
    left, additions = _outcome(sides[0]) if outcome else ("", {})
    common, groups = _terms(sides[-1], formula)
    return FormulaText(left, additions, common, groups)


def _outcome(text: str) -> tuple[str, dict[str, str]]:
    parts = _split(text, "|")
    if len(parts) > 2:
        raise FormulaError(f"The outcome {text.strip()!r} has {len(parts) - 1} bars; join what follows by '+'.")
    additions: dict[str, str] = {}
    for part in _split(parts[1], "+") if len(parts) == 2 else []:
        found = _ADDITION.match(part)
        if not found:
            raise FormulaError(
                f"After the outcome's bar stands {part.strip()!r}. Write `trials(n)`, `cens(c)` or `weights(w)`, "
                "joined by '+'."
            )
        if found[1] in additions:
            raise FormulaError(f"The outcome has `{found[1]}(...)` twice.")
        additions[found[1]] = found[2].strip()
    return parts[0].strip(), additions


def _terms(text: str, formula: str) -> tuple[str, tuple[GroupText, ...]]:
    """The terms without a bar, as text, and those with one."""
    if not text.strip():
        raise FormulaError(f"The formula {formula!r} has no terms; write '1' for an intercept alone.")
    common, groups = [], []
    for sign, term in _signed(text):
        inside = _inside(term)
        bars = _split(inside, "|") if inside is not None else []
        if len(bars) > 1:
            if sign == "-":
                raise FormulaError(f"The term {term.strip()!r} is subtracted; leave it out instead.")
            groups.append(_group(bars, term))
        elif _has_bar(term):
            raise FormulaError(
                f"A bar stands within {term.strip()!r}. A term of a group is a term by itself, such as '(1 + x | "
                "ward)'."
            )
        else:
            common.append(f"{sign} {term.strip()}")
    return " ".join(common).removeprefix("+ "), tuple(groups)


def _group(bars: list[str], term: str) -> GroupText:
    joint = True
    if len(bars) == 3 and not bars[1].strip():
        bars, joint = [bars[0], bars[2]], False
    if len(bars) != 2 or not all(bar.strip() for bar in bars):
        raise FormulaError(
            f"The term {term.strip()!r} can't be read; write '(1 + x | group)', or '||' for no correlation."
        )
    return GroupText(bars[0].strip(), bars[1].strip(), joint)


def _signed(text: str) -> Iterator[tuple[str, str]]:
    """The summands of a text with their signs; a sign after an operator or a sign belongs to the summand."""
    sign, start = "+", 0
    for place, character in _outside(text):
        if character in "+-":
            before = text[start:place].strip()
            if not before or before[-1] in "*:/^~":
                continue
            yield _strip_sign(sign, text[start:place])
            sign, start = character, place + 1
    if not text[start:].strip():
        raise FormulaError(f"The terms {text.strip()!r} end in a sign.")
    yield _strip_sign(sign, text[start:])


def _strip_sign(sign: str, term: str) -> tuple[str, str]:
    """A summand that begins with signs of its own, such as a leading minus, with one sign."""
    bare = term.strip()
    while bare[:1] in ("+", "-"):
        sign = sign if bare[0] == "+" else {"+": "-", "-": "+"}[sign]
        bare = bare[1:].strip()
    return sign, bare


def _inside(term: str) -> str | None:
    """What stands between the brackets of a term that is one bracket."""
    bare = term.strip()
    if not bare.startswith("(") or not bare.endswith(")"):
        return None
    inner = bare[1:-1]
    depth = 0
    for _, character in _every(inner):
        depth += (character in _OPENING) - (character in _CLOSING)
        if depth < 0:
            return None
    return inner


def _has_bar(text: str) -> bool:
    return any(character == "|" for _, character in _every(text))


def _split(text: str, separator: str) -> list[str]:
    """A text cut at a character, where that stands outside of brackets and quotes."""
    places = [place for place, character in _outside(text) if character == separator]
    starts, ends = [0, *(place + 1 for place in places)], [*places, len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside of brackets and quotes, with their places."""
    open_: list[str] = []
    for place, character in _every(text):
        if character in _OPENING:
            open_.append(_CLOSING[_OPENING.index(character)])
            if len(open_) > MOST_NESTED:
                raise FormulaError(f"The formula has brackets {len(open_)} deep; at most {MOST_NESTED} are read.")
        elif character in _CLOSING:
            if not open_ or open_.pop() != character:
                raise FormulaError(f"In {text.strip()!r} a '{character}' closes nothing.")
        elif not open_:
            yield place, character
    if open_:
        raise FormulaError(f"In {text.strip()!r} a '{open_[-1]}' is missing.")


def _every(text: str) -> Iterator[tuple[int, str]]:
    """The characters outside of quotes, with their places."""
    quote = ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        else:
            yield place, character
    if quote:
        raise FormulaError(f"In {text.strip()!r} a {quote} is left open.")
