"""Write a run's report: one HTML file with everything in it, and no address outside the run's folder."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from quarl_lib import __version__
from quarl_lib.files import read_json, write_text
from quarl_lib.reports import glossary, markup, outputs
from quarl_lib.suite import states
from quarl_lib.suite.display import duration, spelled

TEMPLATES = Path(__file__).resolve().parent / "templates"
LAB_ONLY = "lab-only"  # tag of a cell that helps in JupyterLab and says nothing of the run
FAILED = ("failed", "timeout", "interrupted")


@cache
def environment() -> Any:
    """Return the templates, ready to render."""
    import jinja2

    loader = jinja2.FileSystemLoader(TEMPLATES)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def render(template: str, **values: Any) -> str:
    """Render a page with style sheet and script inside, and a policy that lets nothing else act."""
    import markupsafe

    css, script = ((TEMPLATES / name).read_text() for name in ("style.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(css)}; script-src {_hash(script)}; img-src 'self' file: data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        environment()
        .get_template(template)
        .render(
            css=markupsafe.Markup(css), script=markupsafe.Markup(script), policy=policy, version=__version__, **values
        )
    )


def _hash(text: str) -> str:
    """Return what lets a browser run or apply exactly this text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def build(directory: Path) -> Path:
    """Write `report.html` from a run's notebook and record, and note its figures in `run.json`.

    Raises:
        ValueError: there is no executed notebook in the folder.
    """
    record = states.read(directory)
    cells = notebook_cells(directory)
    shown = outputs.Outputs(outputs.widgets_of(read_json(directory / "notebook.ipynb")), directory)
    failed = record.get("cell") if record.get("state") in FAILED else None
    markdown = markup.Markdown()
    blocks, figures = [], []
    for index, cell in enumerate(cells):
        if LAB_ONLY in cell["metadata"].get("tags", []):
            continue
        if cell["cell_type"] == "markdown":
            blocks.append({"kind": "markdown", "html": markup.safe(markdown.render("".join(cell["source"])))})
        elif cell["cell_type"] == "code" and "".join(cell["source"]).strip():
            figures += _figures(cell)
            blocks.append(_code_block(index, cell, failed, shown))
    title, lead = _split_title(blocks)
    path = directory / "report.html"
    page = render(
        "report.html.j2",
        record=record, title=title, lead=lead, blocks=blocks, failed_cell=failed,
        contents=[heading for heading in markdown.headings if heading.level in (2, 3)],
        verdict=_verdict(record, cells, failed), facts=list(_facts(record, directory)),
        parameters=_parameters(record), changed=len(record.get("changed", [])),
        links=[name for name in ("summary.csv", "results.parquet", "notebook.ipynb", "params.yaml", "log.txt")
               if (directory / name).exists()],
        has_log=(directory / "log.txt").exists(),
        head_figure=_head_figure(shown, read_json(directory / "finished.json").get("figure")),
        duration=duration(record["duration_s"]) if "duration_s" in record else "",
        suite_index="../../index.html" if record.get("suite") else None,
    )  # fmt: skip
    write_text(path, _explained(page))
    if record.get("state"):
        states.change(directory, record["state"], title=title, figures=figures, reason=record.get("reason", ""))
    return path


def _explained(page: str) -> str:
    """Explain the field's words where each stands first, in the report's prose alone."""
    head, opening, rest = page.partition('<main id="content">')
    body, closing, foot = rest.rpartition("</main>")
    parsed = markup.parsed(body)
    glossary.explain(parsed, set())
    for number, box in enumerate(parsed.select('.scroll[aria-label="Table"]'), start=1):
        box["aria-label"] = f"Table {number}"  # landmarks need names of their own
    return f"{head}{opening}{parsed}{closing}{foot}"


def _head_figure(shown: outputs.Outputs, name: object) -> Any:
    """Return the figure that shows the claim once more, for the head, without the caption's links; else the first."""
    figure = shown.named.get(str(name)) or next(iter(shown.named.values()), "")
    start, caption, _ = figure.partition("<figcaption>")
    said = re.match(r"<b>.*?</b>[^·<]*", figure[len(start) + len(caption) :])
    return markup.safe(f"{start}{caption}{said[0] if said else ''}</figcaption></figure>") if figure else ""


def notebook_cells(directory: Path) -> list[dict[str, Any]]:
    """Return the executed notebook's cells, without those that papermill adds to mark an error."""
    cells = read_json(directory / "notebook.ipynb").get("cells")
    if cells is None:
        raise ValueError(f"{directory}: no notebook.ipynb that can be read; give the folder of a run")
    return [cell for cell in cells if "papermill-error-cell-tag" not in cell["metadata"].get("tags", [])]


def _code_block(index: int, cell: dict[str, Any], failed: int | None, shown: outputs.Outputs) -> dict[str, Any]:
    source = "".join(cell["source"])
    tags = cell["metadata"].get("tags", [])
    rendered = [markup.safe(shown.render(one, index)) for one in outputs.merged(cell["outputs"])]
    label = "Parameters given" if "injected-parameters" in tags else "Parameters" if "parameters" in tags else "Code"
    if index == failed:
        label = f"Code of cell {index + 1}, where the run ended"
    return {
        "kind": "code", "index": index, "label": label, "source": markup.safe(markup.code(source)), "outputs": rendered,
        "failed": index == failed, "skipped": cell.get("execution_count") is None,
    }  # fmt: skip


def _figures(cell: dict[str, Any]) -> list[dict[str, str]]:
    found = [
        one.get("metadata", {}).get("image/png", {}) for one in cell["outputs"] if "image/png" in one.get("data", {})
    ]
    return [{"name": facts.get("name", ""), "alt": facts.get("alt", "")} for facts in found]


def _split_title(blocks: list[dict[str, Any]]) -> tuple[str, Any]:
    """Take the title and the text below it out of the first cell: they stand in the report's head."""
    if not blocks or blocks[0]["kind"] != "markdown" or not blocks[0]["html"].startswith("<h1"):
        return "Report", ""
    heading, _, rest = blocks.pop(0)["html"].partition("</h1>")
    return html.unescape(heading.partition(">")[2]), markup.safe(rest.strip())


def _verdict(record: dict[str, Any], cells: list[dict[str, Any]], failed: int | None) -> str:
    state = {
        "failed": "This run failed",
        "timeout": "This run took too long",
        "interrupted": "This run was interrupted",
    }
    verdict = state.get(record.get("state", ""), f"This run is {record.get('state')}")
    if failed is None or failed >= len(cells):
        return f"{verdict}."
    first = ("".join(cells[failed]["source"]).strip().splitlines() or [""])[0]
    return f"{verdict} in cell {failed + 1}: {first}"


def _facts(record: dict[str, Any], directory: Path) -> Iterator[tuple[str, str]]:
    """Name what a reader wants to know about a run before its figures."""
    if not record:
        yield "Folder", str(directory.name)
        return
    if "duration_s" in record:
        yield "Duration", duration(record["duration_s"])
    if "started" in record:
        yield "Started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["started"]))
    yield (
        "Suite",
        record.get("suite", "")
        + (f" (preset {record['preset']})" if record.get("preset") != record.get("suite") else ""),
    )
    yield "Run", record.get("run_id", "")
    if record.get("cpu"):
        yield "Machine", f"{record['cpu']}, {record.get('cores')} cores"
        yield "CPU features", ", ".join(record.get("cpu_features", [])) or "none that matter here"
    if record.get("commit"):
        yield "Commit", record["commit"]
    if record.get("seeds"):
        yield "Seeds", ", ".join(f"{name} {value}" for name, value in record["seeds"].items())


def _parameters(record: dict[str, Any]) -> list[dict[str, Any]]:
    changed = record.get("changed", [])
    return [
        {"name": name, "value": spelled(value),
         "changed": name in changed}
        for name, value in record.get("parameters", {}).items()
    ]  # fmt: skip
