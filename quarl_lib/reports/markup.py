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

ROWS_SHOWN = 30
LONG_CELL = 45
EQUATION_SIZE = 12.0
_NUMBER = re.compile(r"[-+−]?[\d,]*\.?\d+(e[-+]?\d+)?\s*%?|–|inf|nan", re.IGNORECASE)
_CELL = re.compile(r"<(td|th)\b([^>]*)>(.*?)</\1>", re.DOTALL)
# What mathtext does not know, in words that it does.
_TEX_WORDS = {
    r"\\operatorname\b": r"\\mathrm",
    r"\\tfrac": r"\\frac",
    r"\\[lr]Vert": r"\\|",
    r"\\[lr]vert": "|",
    r"\\le\b": r"\\leq",
    r"\\ge\b": r"\\geq",
    r"\\ne\b": r"\\neq",
    r"\\!|\\[bB]igg?[lr]?\b": "",
}


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
        """Return a cell's HTML, equations drawn as SVG."""
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
        plain = html.unescape(re.sub(r"<[^>]+>", "", text))
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
    """Draw an equation as SVG in the text's colour, its TeX as alternative; what cannot be drawn stays TeX."""
    if display:
        tex = tex.replace(r"\frac", r"\dfrac")
    lines = [line.strip() for line in re.split(r"\\\\", tex.replace("&", " ").strip()) if line.strip()]
    try:
        drawn = "<br>".join(_draw(" ".join(line.split()), f"{slug(tex)[:12]}{i}") for i, line in enumerate(lines))
    except ValueError:
        return f'<code class="tex">{html.escape(tex)}</code>'
    return f'<span class="math" role="img" aria-label="{html.escape(" ".join(tex.split()), quote=True)}">{drawn}</span>'


def _draw(tex: str, prefix: str) -> str:
    import matplotlib as mpl
    from matplotlib import mathtext
    from matplotlib.font_manager import FontProperties

    tex = re.sub(r"\\text\{([^}]*)\}", lambda match: "\\mathrm{" + match[1].replace(" ", "\\ ") + "}", tex)
    for pattern, replacement in _TEX_WORDS.items():
        tex = re.sub(pattern, replacement, tex)
    buffer = io.StringIO()
    style: Any = {
        "svg.fonttype": "path",
        "svg.hashsalt": "quarl",
        "mathtext.fontset": "stix",
        "font.family": "STIXGeneral",
    }
    with mpl.rc_context(style):
        depth = mathtext.math_to_image(f"${tex}$", buffer, FontProperties(size=EQUATION_SIZE), format="svg")
    svg = re.sub(r"(?s)^.*?(?=<svg )|<metadata>.*?</metadata>|<!--.*?-->", "", buffer.getvalue())
    svg = re.sub(r'(?s)<g id="patch_1">.*?</g>', "", svg, count=1)  # the white ground
    width, height = (float(re.search(rf'<svg[^>]* {side}="([\d.]+)pt"', svg)[1]) for side in ("width", "height"))  # type: ignore[index]
    em = EQUATION_SIZE / 1.3  # a little larger than the text around it
    size = f'style="width:{width / em:.2f}em;height:{height / em:.2f}em;vertical-align:{-depth / em:.2f}em"'
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg).replace(
        "<svg ", f'<svg aria-hidden="true" {size} fill="currentColor" ', 1
    )
    svg = re.sub(r'style="fill: #000000[^"]*"|xmlns(:xlink)?="[^"]*"|version="1.1"', "", svg)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg).replace("xlink:href", "href")
    return re.sub(r"\s*\n\s*", " ", svg).strip()


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
    """Put each table into a box that scrolls by itself, cut after thirty rows; columns of numbers to the right."""
    text = re.sub(r"<style[^>]*>.*?</style>|<script[^>]*>.*?</script>|<link[^>]*>", "", text, flags=re.DOTALL)
    return re.sub(r"<table\b.*?</table>", lambda match: _box(match[0], name, csv), text, flags=re.DOTALL)


def _box(table: str, name: str, csv: str) -> str:
    rows = [_CELL.findall(row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)]
    head = [row for row in rows if row and all(kind == "th" for kind, _, _ in row)]
    body = [row for row in rows if row and row not in head]
    numeric = {
        column
        for column in range(max(map(len, body), default=0))
        if all(len(row) > column and _NUMBER.fullmatch(html.unescape(row[column][2]).strip()) for row in body)
    }
    if any("span=" in attributes for row in rows for _, attributes, _ in row):
        numeric = set()
    lines = [f"<thead>{''.join(_row(row, numeric) for row in head)}</thead>"] if head else []
    lines.append(f"<tbody>{''.join(_row(row, numeric) for row in body[:ROWS_SHOWN])}</tbody>")
    label = html.escape(name, quote=True)
    box = f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{"".join(lines)}</table></div>'
    if len(body) > ROWS_SHOWN:
        box += f'<p class="note">First {ROWS_SHOWN} of {len(body)} rows: <a href="{csv}">{csv}</a></p>'
    return box


def _row(row: list[tuple[str, str, str]], numeric: set[int]) -> str:
    cells = []
    for column, (kind, attributes, text) in enumerate(row):
        spans = "".join(f" {span}" for span in re.findall(r'(?:col|row)span="?\d+"?', attributes))
        scope = ' scope="col"' if kind == "th" else ""
        long = len(re.sub(r"<[^>]+>", "", text)) > LONG_CELL
        style = " class=num" if column in numeric else " class=long" if long else ""
        cells.append(f"<{kind}{scope}{spans}{style}>{text}</{kind}>")
    return f"<tr>{''.join(cells)}</tr>\n"


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
