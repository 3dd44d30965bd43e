"""The page around a report's sections: its head, its style, on the screen and on paper."""

from collections.abc import Mapping

from fedbayes.report.markup import Markup, element, section, words

# Nothing may be loaded and nothing run, even where some text should have been escaped and was not.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_LIGHT = {
    "ink": "#1c2024", "muted": "#5b6470", "line": "#b4bbc4", "faint": "#e3e7ec", "paper": "#ffffff",
    "panel": "#f5f7f9", "blue": "#0072B2", "orange": "#B84A00", "good": "#00694d", "bad": "#b3261e",
}  # fmt: skip
_DARK = {
    "ink": "#e4e7eb", "muted": "#a3acb8", "line": "#57606c", "faint": "#2c323a", "paper": "#14171b",
    "panel": "#1d2127", "blue": "#5ab4e6", "orange": "#f0894a", "good": "#4cc9a0", "bad": "#ff8a80",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 54rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.75rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 44rem; margin: .6rem 0; }
a { color: var(--blue); }
.about, figcaption, caption, .todo { color: var(--muted); }
.verdict { border-left: .3rem solid var(--good); background: var(--panel); padding: .75rem 1rem; margin: 1.25rem 0; }
.verdict.bad { border-color: var(--bad); }
.verdict p { margin: .2rem 0; }
.todo { border-left: .2rem solid var(--line); padding-left: .8rem; }
nav ol { list-style: none; columns: 2 16rem; padding: 0; margin: 1rem 0; }
nav li { break-inside: avoid; padding: .15rem 0; }
.wide, pre { overflow-x: auto; margin: 1rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.narrow { display: none; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; white-space: nowrap; padding-bottom: .4rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--faint); }
thead th { border-bottom: 1px solid var(--line); vertical-align: bottom; }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
.pairs { width: 100%; margin: 1rem 0; }
.pairs th { width: 9rem; color: var(--muted); font-weight: 500; }
.pairs td { overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .875em; }
pre { background: var(--panel); border: 1px solid var(--faint); padding: .8rem 1rem; line-height: 1.45; }
figure { margin: 1.25rem 0; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
figcaption { font-size: .9rem; max-width: 40rem; }
@media screen and (max-width: 34rem) {
  body { padding: 1rem .9rem 3rem; }
  .pairs th, .pairs td { display: block; width: auto; }
  .pairs th { border-bottom: 0; padding-bottom: 0; }
  .less { display: none; }
  .narrow { display: inline; }
  caption, thead .number { white-space: normal; }
  th, td { padding-right: .5rem; }
  tbody th, td:not(.number) { overflow-wrap: anywhere; }
}
@media print {
  :root { color-scheme: light; LIGHT }
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  h2, caption, thead { break-after: avoid; }
  figure, tr, .verdict { break-inside: avoid; }
  thead { display: table-header-group; }
  .wide, pre { overflow: visible; }
  a { color: inherit; text-decoration: none; }
}
@page { margin: 18mm; }
"""


def page(title: str, head: Markup, parts: Mapping[str, tuple[str, Markup]]) -> str:
    """The whole file.

    Parameters
    ----------
    title
        Of the page.
    head
        What stands above the contents.
    parts
        By anchor, each section's title and what is in it.
    """
    entries = [element("li", element("a", words(name), href=f"#{anchor}")) for anchor, (name, _) in parts.items()]
    contents = element("nav", element("ol", *entries), aria_label="Contents")
    sections = [section(anchor, name, inside) for anchor, (name, inside) in parts.items()]
    body = element("body", element("header", head), contents, element("main", *sections))
    return f'<!DOCTYPE html>\n<html lang="en">{_head(title)}{body}</html>\n'


def _head(title: str) -> Markup:
    return Markup(
        '<head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{words(_POLICY)}"/>'
        f"<title>{words(title)}</title><style>{_style()}</style></head>"
    )


def _style() -> str:
    """The sheet with its colours: they are the report's own, so nothing in it is escaped or has to be."""
    light, dark = (" ".join(f"--{name}: {color};" for name, color in each.items()) for each in (_LIGHT, _DARK))
    return _STYLE.replace("LIGHT", light).replace("DARK", dark)
