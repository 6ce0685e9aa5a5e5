"""Turn what a notebook holds (Markdown, equations, code, outputs) into HTML that needs no network."""

from __future__ import annotations

import base64
import html
import io
import itertools
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit

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
        renderer.register("block_math", lambda _, tex: f'<div class="math-block">{equation(tex, display=True)}</div>\n')
        return in_boxes(str(markdown(source)))

    def _note(self, text: str, level: int) -> str:
        plain = _parsed(text).get_text()
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
        math = _parsed(convert(written, display="block" if display else "inline")).math
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


def _parsed(text: str) -> Any:
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

    A table is cut after thirty rows; columns of numbers stand to the right.
    """
    page = _parsed(_clean(text))
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
    foreign = (tag, attribute) == ("img", "src") and (address.scheme or address.netloc) and address.scheme != "data"
    return None if foreign or (tag == "a" and address.scheme == "data") else value


def _put_into_box(page: Any, table: Any, name: str, csv: str) -> None:
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
    if len(body) > ROWS_SHOWN:
        note = _parsed(f'<p class="note">First {ROWS_SHOWN} of {len(body)} rows: <a></a></p>').p
        note.a["href"] = note.a.string = csv
        box.insert_after(note)


def merged(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join what a cell wrote to one stream piece by piece."""
    joined: list[dict[str, Any]] = []
    for one in outputs:
        last = joined[-1] if joined else {}
        if one["output_type"] == "stream" and last.get("name") == one["name"]:
            joined[-1] = {**last, "text": "".join(last["text"]) + "".join(one["text"])}
        else:
            joined.append(one)
    return joined


def output(one: dict[str, Any], number: int) -> str:
    """Return one output of a code cell as HTML."""
    kind = one["output_type"]
    if kind == "stream":
        return _stream(one["name"], "".join(one["text"]))
    if kind == "error":
        trace = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", "\n".join(one["traceback"]))
        return f'<pre class="error" tabindex="0" role="region" aria-label="Error">{html.escape(trace)}</pre>'
    data, metadata = one.get("data", {}), one.get("metadata", {})
    for mime in ("image/png", "image/jpeg"):
        if mime in data:
            return _picture(mime, "".join(data[mime]), metadata.get(mime, {}), number)
    if "application/vnd.jupyter.widget-view+json" in data:
        return ""
    if "text/html" in data:
        return in_boxes("".join(data["text/html"]))
    if "text/markdown" in data:
        return Markdown().render("".join(data["text/markdown"]))
    return f'<pre tabindex="0">{html.escape("".join(data.get("text/plain", "")))}</pre>'


def _stream(name: str, text: str) -> str:
    shown = "\n".join(line.rsplit("\r", 1)[-1] for line in text.rstrip("\n").replace("\r\n", "\n").split("\n"))
    shown = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown)
    pre = f'<pre tabindex="0">{html.escape(shown)}</pre>'
    if name == "stderr" or "\r" in text:
        lines = shown.count("\n") + 1
        label = f"{'Messages' if name == 'stderr' else 'Progress'} ({lines} {'line' if lines == 1 else 'lines'})"
        return f'<details class="noise"><summary>{label}</summary>{pre}</details>'
    return pre


def _picture(mime: str, data: str, facts: dict[str, Any], number: int) -> str:
    alt = facts.get("alt") or f"Figure {number} of this report, without a description"
    size = ""
    with io.BytesIO(base64.b64decode(data)) as raw:
        from PIL import Image

        with Image.open(raw) as image:
            size = f' width="{image.width}" height="{image.height}"'
    links = (
        [f'<a href="{html.escape(facts["data"])}">data: {html.escape(facts["data"])}</a>'] if facts.get("data") else []
    )
    if facts.get("name"):
        path = f"figures/{html.escape(facts['name'])}.png"
        links.append(f'<a href="{path}">picture: {path}</a>')
    source = f"data:{mime};base64,{''.join(data.split())}"
    caption = f"Figure {number}" + "".join(f" · {link}" for link in links)
    picture = f'<img src="{source}" alt="{html.escape(alt, quote=True)}"{size}>'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"
