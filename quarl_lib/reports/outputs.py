"""Turn the outputs of a notebook's cells into HTML: what cannot be shown leaves a box that says which cell, and why."""

from __future__ import annotations

import base64
import html
import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quarl_lib.reports import markup
from quarl_lib.suite import streams

PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SVG = "image/svg+xml"
WIDGET = "application/vnd.jupyter.widget-view+json"
MOST_HTML = 3_000_000  # characters; half a table would not be one
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*")
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NO_PLACE = {"script", "foreignobject", "iframe", "object", "embed", "audio", "video"}


def widgets_of(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the state of each widget that was saved with a notebook."""
    saved = notebook.get("metadata", {}).get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {})
    return saved.get("state", {})


def merged(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join what a cell wrote to one stream piece by piece."""
    joined: list[dict[str, Any]] = []
    for one in outputs:
        last = joined[-1] if joined else {}
        if one["output_type"] == "stream" and last.get("name") == one["name"]:
            joined[-1]["text"] = [*last["text"], "".join(one["text"])]
        elif one["output_type"] == "stream":
            joined.append({**one, "text": ["".join(one["text"])]})
        else:
            joined.append(one)
    return joined


@dataclass
class Outputs:
    """Render the outputs of one notebook in their order; figures are numbered through."""

    widgets: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    figures: int = 0
    named: dict[str, str] = field(default_factory=dict)  # the first figure of each name, as HTML
    _open: list[str] = field(default_factory=list)

    def render(self, one: dict[str, Any], cell: int) -> str:
        """Return one output of a cell, counted from 0, as HTML."""
        kind = one["output_type"]
        if kind == "stream":
            return _stream(one["name"], "".join(one["text"]))
        if kind == "error":
            trace = _text("\n".join(one["traceback"]))
            return f'<pre class="error" tabindex="0" role="region" aria-label="Error">{html.escape(trace)}</pre>'
        data: dict[str, Any] = {
            mime: "".join(value) if isinstance(value, list) else value for mime, value in one["data"].items()
        }
        for mime in (*PICTURES, SVG):
            if mime in data:
                return self._figure(mime, data[mime], one.get("metadata", {}).get(mime, {}), cell)
        if WIDGET in data:
            return self._widget(data[WIDGET].get("model_id", ""), cell)
        if "text/html" in data:
            if len(data["text/html"]) > MOST_HTML:
                return _box(cell, f"HTML of {len(data['text/html']):,} characters is too long; notebook.ipynb holds it")
            shown = markup.in_boxes(data["text/html"])
            folded = str(one.get("metadata", {}).get("text/html", {}).get("folded", ""))
            return (
                f"<details><summary>{html.escape(folded.capitalize())}</summary>{shown}</details>" if folded else shown
            )
        if "text/markdown" in data:
            return markup.Markdown().render(data["text/markdown"])
        if "text/plain" in data:
            return f'<pre tabindex="0">{html.escape(_text(data["text/plain"]))}</pre>'
        return _box(cell, f"{', '.join(map(str, data)) or 'nothing'} is no kind that a report can show") if data else ""

    def _figure(self, mime: str, data: str, facts: dict[str, Any], cell: int) -> str:
        try:
            source, size = (_svg(data), "") if mime == SVG else _raster(mime, data)
        except Exception as error:  # whatever a decoder makes of what is no picture
            return _box(cell, f"its {mime} cannot be read: {type(error).__name__}: {str(error)[:200]}")
        self.figures += 1
        described = facts.get("alt") or f"Figure {self.figures} of this report, without a description"
        alt = html.escape(str(described), quote=True)
        links = [f'<a href="{name}">data: {name}</a>' for name in [str(facts.get("data", ""))] if _plain(name)]
        name = str(facts.get("name", ""))
        if _plain(name):
            links.append(f'<a href="figures/{name}.png">picture: figures/{name}.png</a>')
            links += [
                f'<a href="figures/{name}.{kind}">{kind.upper()}</a>'
                for kind in ("svg", "pdf")
                if self.folder and (self.folder / "figures" / f"{name}.{kind}").exists()
            ]
        words = facts.get("caption") or facts.get("alt")
        said = f" {html.escape(str(words))}" if words else ""
        caption = f"<b>Figure {self.figures}.</b>{said}" + "".join(f" · {link}" for link in links)
        picture = f'<img src="{source}" alt="{alt}"{size}>'
        button = f'<button type="button" class="enlarge" title="Enlarge figure {self.figures}">{picture}</button>'
        drawn = f"<figure>{button}<figcaption>{caption}</figcaption></figure>"
        self.named.setdefault(name, drawn)
        return drawn

    def _widget(self, model: str, cell: int) -> str:
        """Return what a widget holds: an Output's outputs, a box's children, text, pictures."""
        if model not in self.widgets:
            return _box(cell, "a widget whose state was not saved with the notebook")
        if model in self._open:
            return ""
        name, state = self.widgets[model].get("model_name", ""), self.widgets[model].get("state", {})
        self._open.append(model)
        try:
            if name == "OutputModel":
                return "".join(self.render(one, cell) for one in merged(state.get("outputs", [])))
            if "children" in state:
                return "".join(self._widget(child.removeprefix("IPY_MODEL_"), cell) for child in state["children"])
        finally:
            self._open.pop()
        if name in ("HTMLModel", "HTMLMathModel"):
            return markup.in_boxes(str(state.get("value", "")))
        if name == "ImageModel":
            kept = [one["data"] for one in self.widgets[model].get("buffers", []) if one.get("path") == ["value"]]
            return self._figure(f"image/{state.get('format', 'png')}", "".join(kept), {}, cell)
        if name in ("LabelModel", "TextModel", "TextareaModel"):
            return f"<p>{html.escape(str(state.get('value', '')))}</p>"
        value = f" at {state['value']}" if isinstance(state.get("value"), int | float | str) else ""
        label = f"{state.get('description', '')} ".lstrip()
        return _box(cell, f"{label}({name.removesuffix('Model') or 'widget'}{value}) answers in JupyterLab only")


def _box(cell: int, why: str) -> str:
    return f'<p class="missing">Cell {cell + 1}: an output is not shown: {html.escape(why)}.</p>'


def _plain(name: str) -> bool:
    return bool(_PLAIN_NAME.fullmatch(name))


def _text(text: str) -> str:
    return _TERMINAL.sub("", streams.capped(text, streams.NOTEBOOK_HEAD, streams.NOTEBOOK_TAIL))


def _stream(name: str, text: str) -> str:
    shown = "\n".join(line.rsplit("\r", 1)[-1] for line in text.rstrip("\n").replace("\r\n", "\n").split("\n"))
    shown = _text(shown)
    pre = f'<pre tabindex="0">{html.escape(shown)}</pre>'
    if name == "stderr" or "\r" in text:
        lines = shown.count("\n") + 1
        label = f"{'Messages' if name == 'stderr' else 'Progress'} ({lines} {'line' if lines == 1 else 'lines'})"
        return f'<details class="noise"><summary>{label}</summary>{pre}</details>'
    return pre


def _raster(mime: str, data: str) -> tuple[str, str]:
    """Return a picture's address and size; encoded anew, so that it holds nothing but the picture."""
    from PIL import Image

    content = base64.b64decode(data)
    with Image.open(io.BytesIO(content)) as image:
        size = f' width="{image.width}" height="{image.height}"'
    return f"data:{mime};base64,{base64.b64encode(content).decode()}", size


def _svg(text: str) -> str:
    """Return an SVG's address, without scripts, handlers and foreign addresses.

    As an image a browser runs and loads nothing in it anyway; cleaned, it may also be saved and opened by itself.
    """
    from xml.etree import ElementTree

    if "<!ENTITY" in text:
        raise ValueError("it declares entities")
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in _NO_PLACE:
                parent.remove(child)
        for name, value in list(parent.attrib.items()):
            foreign = _local(name) == "href" and not value.startswith(("#", "data:image/png", "data:image/jpeg"))
            if foreign or _local(name).startswith("on"):
                del parent.attrib[name]
    for prefix, space in (("", "http://www.w3.org/2000/svg"), ("xlink", "http://www.w3.org/1999/xlink")):
        ElementTree.register_namespace(prefix, space)
    return "data:image/svg+xml;base64," + base64.b64encode(ElementTree.tostring(root)).decode()


def _local(name: object) -> str:
    return str(name).rpartition("}")[2].lower()
