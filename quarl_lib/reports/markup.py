"""Turn Markdown, equations, code and tables into HTML that needs no network."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from quarl_lib.reports import tables

ROWS_SHOWN = 30
LONG_CELL = 45
_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?\s*%?|–|inf|nan", re.IGNORECASE)
# What MathML elements must have: one with fewer parts is an equation that was not understood.
_PARTS = {"mfrac": 2, "msub": 2, "msup": 2, "mover": 2, "munder": 2, "mroot": 2, "msubsup": 3, "munderover": 3}
_MATHML: dict[str, set[str]] = {
    **{tag: set() for tag in (*_PARTS, "mrow", "mn", "mtext", "msqrt", "mtr", "mstyle", "mpadded")},
    "math": {"display", "xmlns", "alttext"}, "mo": {"stretchy", "fence", "form", "minsize", "maxsize", "accent"},
    "mi": {"mathvariant"}, "mspace": {"width"}, "mover": {"accent"}, "mtd": {"columnalign"}, "mtable": {"columnalign"},
}  # fmt: skip


@dataclass(frozen=True)
class Heading:
    """A heading as the table of contents lists it."""

    level: int
    text: str
    id: str


@dataclass
class Markdown:
    """Render Markdown cells of one document: headings are collected and get ids that do not repeat."""

    headings: list[Heading] = field(default_factory=list)

    def render(self, source: str) -> str:
        """Return a cell's HTML, equations as MathML."""
        import mistune

        noted = self._note

        class Renderer(mistune.HTMLRenderer):
            def heading(self, text: str, level: int, **attributes: Any) -> str:
                return f'<h{level} id="{noted(text, level)}">{text}</h{level}>\n'

        renderer = Renderer(escape=False)
        markdown = mistune.create_markdown(renderer=renderer, plugins=["table", "strikethrough", "footnotes", "math"])
        renderer.register("inline_math", lambda _, tex: equation(tex))
        block = '<div class="math-block" tabindex="0">{}</div>\n'.format  # it scrolls where it is wide
        renderer.register("block_math", lambda _, tex: block(equation(tex, display=True)))
        return in_boxes(str(markdown(source)))

    def _note(self, text: str, level: int) -> str:
        plain = parsed(text).get_text()
        taken = {heading.id for heading in self.headings}
        base = name = slug(plain)
        for number in itertools.count(2):
            if name not in taken:
                break
            name = f"{base}-{number}"
        self.headings.append(Heading(level, plain, name))
        return name


def slug(text: str) -> str:
    """Return a heading's text as an id."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "section"


@cache
def equation(tex: str, display: bool = False) -> str:
    """Return an equation as MathML, its TeX as alternative; one that was not understood stays TeX."""
    from latex2mathml.converter import convert

    tex = " ".join(tex.split())
    written = rf"\begin{{align*}}{tex}\end{{align*}}" if r"\\" in tex and r"\begin" not in tex else tex
    try:
        math = parsed(convert(written, display="block" if display else "inline")).math
    except Exception:  # its parser fails in many ways of its own
        math = None
    if math is None or _misunderstood(math):
        return f'<code class="tex">{html.escape(tex)}</code>'
    math["alttext"] = tex
    return str(math)


def _misunderstood(math: Any) -> bool:
    """Say whether a command was left as it stood, or an element lacks a part."""
    short = [tag for tag in math.find_all(list(_PARTS)) if len(tag.find_all(recursive=False)) != _PARTS[tag.name]]
    return bool(short) or "\\" in math.get_text()


def parsed(text: str) -> Any:
    """Return HTML as a tree."""
    import bs4

    return bs4.BeautifulSoup(text, "html.parser")


def code(source: str) -> str:
    """Colour Python source by classes that the style sheet knows."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))


def safe(text: str) -> Any:
    """Mark HTML as ready for a template."""
    import markupsafe

    return markupsafe.Markup(text)


def in_boxes(text: str, name: str = "Table", csv: str = "summary.csv") -> str:
    """Return HTML without scripts, styles and foreign addresses, each table in a box that scrolls by itself.

    A table is laid out for a reader, cut after thirty rows, its numbers at the right.
    """
    page = parsed(_clean(text))
    for table in page.find_all("table"):
        _put_into_box(page, table, name, csv)
    return str(page)


def _clean(text: str) -> str:
    import nh3

    attributes = {tag: set(names) for tag, names in nh3.ALLOWED_ATTRIBUTES.items()}
    attributes |= {**_MATHML, "*": {"id", "class", "role", "title", "lang", "dir", "tabindex"}}
    return nh3.clean(
        text,
        tags=nh3.ALLOWED_TAGS | _MATHML.keys() | {"section"},
        attributes=attributes,
        attribute_filter=_own_pictures,
        generic_attribute_prefixes={"aria-"},
        url_schemes={"http", "https", "mailto", "data"},
        link_rel=None,
    )


def _own_pictures(tag: str, attribute: str, value: str) -> str | None:
    """Leave out the address of a picture that lies neither in the page nor in the run's folder."""
    address = urlsplit(value)
    if (tag, attribute) == ("img", "src"):
        return value if address.scheme == "data" or not (address.scheme or address.netloc) else None
    return None if address.scheme == "data" else value


def _put_into_box(page: Any, table: Any, name: str, csv: str) -> None:
    same = tables.lay_out(page, table)
    rows = [row.find_all(["td", "th"], recursive=False) for row in table.find_all("tr")]
    body = [row for row in rows if any(cell.name == "td" for cell in row)]
    spans = any(cell.get("colspan") or cell.get("rowspan") for row in rows for cell in row)
    numeric = {
        column
        for column in range(max(map(len, body), default=0))
        if not spans and all(len(row) > column and _NUMBER.fullmatch(row[column].get_text().strip()) for row in body)
    }
    table.attrs = {}
    for row in rows:
        for column, cell in enumerate(row):
            text = cell.get_text()
            style = "num" if column in numeric else "long" if len(text) > LONG_CELL else ""
            kept = {side: cell[side] for side in ("colspan", "rowspan") if cell.get(side)}
            cell.attrs = {
                **({"scope": "col"} if cell.name == "th" else {}),
                **kept,
                **({"class": style} if style else {}),
            }
    for row in body[ROWS_SHOWN:]:
        row[0].parent.decompose()
    box = page.new_tag("div", attrs={"class": "scroll", "tabindex": "0", "role": "region", "aria-label": name})
    table.wrap(box)
    if same:
        constant = page.new_tag("p", attrs={"class": "note same"})
        constant.string = f"The same in every row: {same}."
        box.insert_after(constant)
    if len(body) > ROWS_SHOWN:
        note = parsed(f'<p class="note">First {ROWS_SHOWN} of {len(body)} rows: <a></a></p>').p
        note.a["href"] = note.a.string = csv
        box.insert_after(note)
