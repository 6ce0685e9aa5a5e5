"""The explorer as JupyterLab shows it: drop-downs, filters, the figure, and a second run beside the first."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from quarl_lib.reports.explore import drawings, rows
from quarl_lib.reports.explore.finished import WHAT_TO_RUN, FinishedRun, finished_runs
from quarl_lib.suite import catalog
from quarl_lib.suite.display import spelled

ROWS_SHOWN = 12
WIDE = widgets.Layout(width="min(100%, 34rem)")
DESCRIBED = {"description_width": "6rem"}


def show(outputs: Path | str | None = None) -> widgets.Widget:
    """Return the explorer of the runs in a folder, the project's `outputs/` if none is given."""
    folder = Path(outputs) if outputs else catalog.find_project() / "outputs"
    runs = finished_runs(folder)
    if not runs:
        return widgets.HTML(html.escape(WHAT_TO_RUN.format(folder=folder)).replace("`", ""))
    return Explorer(runs).box


class Explorer:
    """Widgets that follow each other: suite, study, run, filters, figure, and what these choose."""

    def __init__(self, runs: list[FinishedRun]) -> None:
        self.runs = runs
        self._quiet = False  # while true, what a choice offers anew is no choice of its own
        self.suite, self.study, self.run, self.beside, self.figure = (
            widgets.Dropdown(description=name, style=DESCRIBED, layout=WIDE)
            for name in ("suite", "study", "run", "beside it", "figure")
        )
        self.filters = {
            name: widgets.SelectMultiple(description=name, rows=6, style=DESCRIBED) for name in rows.COLUMNS
        }
        self.shown = widgets.HBox(layout=widgets.Layout(flex_flow="row wrap"))
        for widget, follow in (
            (self.suite, self._suite_chosen), (self.study, self._study_chosen), (self.run, self._run_chosen),
            *((one, self._draw) for one in (self.beside, self.figure, *self.filters.values())),
        ):  # fmt: skip
            widget.observe(lambda _, follow=follow: self._quiet or follow(), names="value")
        hint = widgets.HTML("Ctrl or Shift chooses several; nothing chosen filters nothing.")
        chosen = widgets.VBox([self.suite, self.study, self.run, self.beside, self.figure])
        picked = widgets.VBox([widgets.HBox(list(self.filters.values()), layout={"flex_flow": "row wrap"}), hint])
        self.box = widgets.VBox([chosen, picked, self.shown])
        self._offer(self.suite, list(dict.fromkeys(run.suite for run in runs)))
        self._suite_chosen()

    def _suite_chosen(self) -> None:
        found = {run.study: run for run in self.runs if run.suite == self.suite.value}
        self._offer(self.study, sorted(found, key=lambda name: str(found[name].record.get("notebook", name))))
        self._study_chosen()

    def _study_chosen(self) -> None:
        mine = [run for run in self.runs if (run.suite, run.study) == (self.suite.value, self.study.value)]
        self._offer(self.run, [(run.label, run.directory) for run in mine])
        self._run_chosen()

    def _run_chosen(self) -> None:
        run = self._at(self.run.value)
        others = [one for one in self.runs if one.study == run.study and one != run]
        beside = [("nothing", ""), *((f"{one.suite}: {one.label}", one.directory) for one in others)]
        self._offer(self.beside, beside)
        self._offer(self.figure, [(name.replace("_", " "), name) for name in drawings.read(run).calls])
        for name, widget in self.filters.items():
            self._offer(widget, rows.choices(run.table, name), ())
            widget.disabled = len(widget.options) < 2
        self._draw()

    def _offer(self, widget: Any, options: list[Any], chosen: Any = None) -> None:
        """Put new options into a widget; a drop-down keeps what was chosen where it can."""
        values = [one[1] if isinstance(one, tuple) else one for one in options]
        if chosen is None:
            chosen = widget.value if widget.value in values else next(iter(values), None)
        self._quiet = True
        widget.options, widget.value = options, chosen
        self._quiet = False

    def _at(self, directory: Path) -> FinishedRun:
        return next(run for run in self.runs if run.directory == directory)

    def _draw(self) -> None:
        choice = {name: widget.value for name, widget in self.filters.items() if widget.value}
        both = [self._at(one) for one in (self.run.value, self.beside.value) if one]
        width = widgets.Layout(width="100%" if len(both) == 1 else "49%", min_width="18rem")
        self.shown.children = [widgets.HTML(part(run, self.figure.value, choice, both), layout=width) for run in both]


def part(run: FinishedRun, figure: str | None, choice: rows.Choice, both: list[FinishedRun]) -> str:
    """Return one run's column as HTML: its claim, the figure of the chosen rows, and the first of these."""
    kept = rows.keep(run.table, choice)
    said = [f"<h3>{html.escape(f'{run.suite}: {run.label}')}</h3>"]
    said += [f"<p>{html.escape(str(run.record.get('key_figure', '')))}</p>"]
    if len(both) == 2:
        said.append(f"<p>{html.escape(differing(run, both[0] if run == both[1] else both[1]))}</p>")
    source = drawings.read(run)
    if figure in source.calls:
        drawing, notes = drawings.drawn(run, source, figure, choice)
        own = run.directory / "figures" / f"{figure}.png"
        if drawing is not None:
            said.append(picture(saved_as_png(drawing), source.alts[figure]))
        elif own.exists():
            said.append(picture(own.read_bytes(), source.alts[figure]))
            notes.append("This is the picture that the run itself drew, of all its rows.")
        said += [f"<p>{html.escape(note)}</p>" for note in notes]
    elif figure:
        said.append(f"<p>This run has no figure {html.escape(figure)}.</p>")
    said.append(f"<p>{len(kept):,} of {len(run.table):,} rows; the first {min(ROWS_SHOWN, len(kept))}:</p>")
    said.append(f'<div style="overflow-x: auto">{_first_rows(kept)}</div>')
    return "\n".join(said)


def differing(run: FinishedRun, other: FinishedRun) -> str:
    """Say which parameters have other values in a run than in another one."""
    values, others = (each.record.get("parameters", {}) for each in (run, other))
    said = [f"{name} = {spelled(values[name])}" for name in values if values[name] != others.get(name)]
    return f"Here {', '.join(said)}." if said else "Both have the same parameters."


def saved_as_png(drawing: Any) -> bytes:
    """Return a figure or Axes as PNG, and close it."""
    import matplotlib.pyplot as plt

    figure, file = getattr(drawing, "figure", drawing), io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()


def picture(png: bytes, alt: str) -> str:
    """Return a picture as an HTML image."""
    data = base64.b64encode(png).decode()
    return f'<img style="max-width: 100%" alt="{html.escape(alt, quote=True)}" src="data:image/png;base64,{data}">'


def _first_rows(table: Any) -> str:
    """Return the first rows as HTML, without the columns that say nothing in any row."""
    said = table.loc[:, [name for name in table if (table[name].notna() & (table[name] != "")).any()]]
    return said.head(ROWS_SHOWN).to_html(index=False, border=0, na_rep="–", float_format="{:.4g}".format)
