"""A run's folder: where tables, figures and sentences go, and how a notebook says that it is done."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from quarl_lib import live, provenance
from quarl_lib.files import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, write_atomically, write_json

Progress = Callable[[int, int, str], None]
ConfigType = TypeVar("ConfigType")
PROJECT = provenance.PROJECT
TABLE_ROWS_SHOWN = 30
FOLDED = ("parameters", "provenance")  # tables that a report shows when asked
THUMBNAIL_INCHES = (5.6, 3.15)  # small, so that its words are large where an index shows it
# Columns that say over how many a row was taken, and the column of single measurements that says it otherwise.
COUNTS = {"agents": "agent", "seeds": "seed", "episodes": "episode", "rounds": "round", "states": "state"}
BATCH_PRINTS_EVERY_S = 10.0
# Venues refuse Type 3 fonts; a fixed salt makes the same figure the same file.
VECTOR_SETTINGS: Any = {"pdf.fonttype": 42, "svg.hashsalt": "quarl"}


def no_progress(done: int, total: int, what: str) -> None:
    """Report nothing: the null object for code that runs outside a notebook."""


class Refused(ValueError):
    """A value that a study does not take; a notebook shows it in one line, as no traceback helps to mend it."""

    def _render_traceback_(self) -> list[str]:
        return [f"ValueError: {self}"]


def from_parameters(config_class: type[ConfigType], namespace: Mapping[str, Any]) -> ConfigType:
    """Build a study's Config from the names that the parameters cell defined.

    Raises:
        Refused: a field of the Config has no parameter of its name, a parameter has no field, or the Config
            refuses a value.
    """
    names = [field.name for field in dataclasses.fields(config_class) if field.init]  # type: ignore[arg-type]
    missing = [name for name in names if name not in namespace]
    if missing:
        raise Refused(f"{config_class.__name__}: no parameter named {', '.join(missing)}; add it to the cell")
    # Only the parameters cell annotates: `name: type = value`.
    unread = [name for name in namespace.get("__annotations__", {}) if name not in names]
    if unread:
        raise Refused(
            f"parameter {', '.join(unread)}: {config_class.__name__} does not read it; take it out, restart the kernel"
        )
    try:
        return config_class(**{name: namespace[name] for name in names})
    except ValueError as error:
        raise Refused(str(error)) from None


def _spelled_out(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "[]"
    return str(value)


_MARKUP = re.compile(r"[<>\[\]`*&$|~!\\]")
_TAG = re.compile(r"(?<!\\)<(?=[A-Za-z/!?])")


def _texts_of(config: object) -> set[str]:
    """Return the texts among a config's values that Markdown could take for markup."""
    values = dataclasses.asdict(config).values() if dataclasses.is_dataclass(config) else ()  # type: ignore[arg-type]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    return {text for text in texts if isinstance(text, str) and _MARKUP.search(text)}


def as_text(number: float) -> str:
    """Format a number for a reader: four digits, no trailing zeros, powers of ten only where they help."""
    if math.isfinite(number) and 1e4 <= abs(number) < 1e9:
        return f"{number:,.0f}"
    return f"{number:.4g}"


def as_html(table: pd.DataFrame) -> str:
    """Return a table as plain HTML, without the index."""
    return table.rename_axis(columns=None).to_html(index=False, border=0, na_rep="–", float_format=as_text)


class Run:
    """The folder of one run, as a notebook sees it: `$QUARL_RUN_DIR`, or `outputs/interactive/<study>`."""

    def __init__(self, study: str, config: object) -> None:
        self.study, self.config = study, config
        self.directory = Path(os.environ.get(RUN_DIR_VARIABLE) or PROJECT / "outputs" / "interactive" / study)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "finished.json").unlink(missing_ok=True)
        self._saved = False
        self._tables: dict[str, pd.DataFrame] = {}
        self._bar, self._picture = live.Bar(), live.Picture(lambda: None)
        self._last_stored = self._last_printed = time.monotonic() - 1.0

    def parameters(self) -> pd.DataFrame:
        """Return the config as a table with one row per parameter."""
        values = dataclasses.asdict(self.config)  # type: ignore[call-overload]
        return pd.DataFrame({"parameter": list(values), "value": [_spelled_out(v) for v in values.values()]})

    def progress(self, done: int, total: int, what: str) -> None:
        """Store how far the run is, at most four times a second, and print it, more rarely in a batch."""
        now = time.monotonic()
        if done < total and now - self._last_stored < 0.25:
            return
        self._last_stored = now
        state = {"done": done, "total": total, "what": what, "time": time.time()}
        write_json(self.directory / "progress.json", state)
        if done >= total or now - self._last_printed > (BATCH_PRINTS_EVERY_S if RUN_DIR_VARIABLE in os.environ else 0):
            self._last_printed = now
            print(f"\r{what} {done}/{total}", end="" if done < total else "\n", flush=True)  # noqa: T201
        if RUN_ID_VARIABLE not in os.environ:  # somebody looks on
            self._bar.show(done, total, what)
            self._picture.show()

    def live(self, read: Callable[[Path], pd.DataFrame], draw: Callable[[pd.DataFrame], Any]) -> None:
        """Draw in JupyterLab, from now on and every few seconds, what `read` finds in the run's folder."""

        def drawn() -> Any:
            table = read(self.directory)
            return draw(table) if len(table) else None

        self._picture = live.Picture(drawn)

    def save(self, table: pd.DataFrame, summary: pd.DataFrame) -> None:
        """Write `results.parquet` (long form) and `summary.csv`, each whole or not at all."""
        write_atomically(self.directory / "results.parquet", lambda path: table.to_parquet(path, index=False))
        write_atomically(self.directory / "summary.csv", lambda path: summary.to_csv(path, index=False))
        self._tables |= {"results": table, "summary": summary}
        self._saved = True

    def save_table(self, table: pd.DataFrame, name: str) -> None:
        """Write a further table as `<name>.csv` beside the summary."""
        write_atomically(self.directory / f"{name}.csv", lambda path: table.to_csv(path, index=False))
        self._tables[name] = table

    def figure(self, drawn: Any, name: str, alt: str, data: str = "summary", spread: str = "") -> None:
        """Save a figure or Axes as `figures/<name>.png`, `.svg` and `.pdf`, and show it with its alt text.

        `data` names the saved table that the figure was drawn from; the report links to it. `spread` says what its
        bars or bands are; the caption adds over how many agents, seeds, episodes or rounds.
        """
        import matplotlib.pyplot as plt
        from IPython.display import Image, display

        if len(alt.strip()) < 15:
            raise ValueError(f"figure {name}: alt={alt!r} says too little; describe what the picture shows")
        figure = getattr(drawn, "figure", drawn)
        path = self.directory / "figures" / f"{name}.png"
        write_atomically(path, lambda aside: figure.savefig(aside, format="png"))
        with plt.rc_context(VECTOR_SETTINGS):
            for kind, date in (("svg", "Date"), ("pdf", "CreationDate")):
                save = partial(figure.savefig, format=kind, metadata={date: None})
                write_atomically(path.with_suffix(f".{kind}"), save)
        plt.close(figure)
        caption = ". ".join(part for part in (alt.rstrip("."), self._counted(data), spread) if part) + "."
        facts = {"alt": alt, "caption": caption, "name": name, "data": f"{data}.csv"}
        display(Image(filename=str(path)), metadata={"image/png": facts})

    def _counted(self, data: str) -> str:
        """Say over how many agents, seeds, episodes, rounds or states a table's rows were taken."""
        table, single, said = self._tables.get(data, pd.DataFrame()), self._tables.get("results", pd.DataFrame()), []
        for count, column in COUNTS.items():
            if count in table and table[count].notna().any():
                low, high = int(table[count][table[count] > 0].min()), int(table[count].max())
            elif column in single and single[column].nunique():
                low = high = single[column].nunique()
            else:
                continue
            number = f"{high:,}" if low == high else f"{low:,} to {high:,}"
            said.append(f"{number} {count.removesuffix('s') if high == 1 else count}")
        return f"n: {', '.join(said)}" if said else ""

    def thumbnail(self, drawn: Any) -> None:
        """Save one panel, drawn for it, as the small picture that the index shows of this run."""
        import matplotlib.pyplot as plt

        figure = getattr(drawn, "figure", drawn)
        figure.set_size_inches(*THUMBNAIL_INCHES)
        path = self.directory / "figures" / "thumbnail.png"
        write_atomically(path, lambda aside: figure.savefig(aside, format="png", dpi=140))
        plt.close(figure)

    def table(self, table: pd.DataFrame, name: str = "summary", whole: bool = False) -> None:
        """Show a table; past thirty rows only its head unless `whole`, with a link to `<name>.csv`."""
        from IPython.display import HTML, Markdown, display

        if name != "summary":
            self.save_table(table, name)
        facts = {"text/html": {"folded": name}} if name in FOLDED else None
        display(HTML(as_html(table if whole else table.head(TABLE_ROWS_SHOWN))), metadata=facts)
        if len(table) > TABLE_ROWS_SHOWN and not whole:
            display(Markdown(f"First {TABLE_ROWS_SHOWN} of {len(table)} rows: [{name}.csv]({name}.csv)"))

    def provenance(self) -> None:
        """Show commit, versions, CPU features, seeds and run id, and keep them as `provenance.json`."""
        facts = provenance.gather()
        values = dataclasses.asdict(self.config)  # type: ignore[call-overload]
        seeds = {name: value for name, value in values.items() if "seed" in name}
        found = {"run_id": os.environ.get(RUN_ID_VARIABLE, "interactive"), **facts, "seeds": seeds}
        write_json(self.directory / "provenance.json", found)
        rows = [(name.replace("_", " "), _spelled_out(value)) for name, value in found.items() if name != "interpreter"]
        self.table(pd.DataFrame(rows, columns=["what", "value"]), "provenance")

    def say(self, sentence: str) -> None:
        """Show a sentence that code made from a table, if there is one; what a parameter's value holds stays text."""
        if not sentence:
            return
        from IPython.display import Markdown, display

        for value in sorted(_texts_of(self.config), key=len, reverse=True):
            sentence = sentence.replace(value, _MARKUP.sub(r"\\\g<0>", value))
        display(Markdown(_TAG.sub(r"\\<", sentence)))

    def finish(self, key_figure: str, figure: str = "") -> None:
        """Say that the last cell was reached; `key_figure` is the run's claim, `figure` names the one that shows it.

        Raises:
            RuntimeError: results were not saved before.
            ValueError: no figure of that name was drawn.
        """
        if not self._saved:  # files may be there, left by an earlier run in this folder
            raise RuntimeError(f"{self.study}: finish() before save(): this run has written no results yet")
        if figure and not (self.directory / "figures" / f"{figure}.png").exists():
            raise ValueError(f"figure={figure!r}: run.figure() drew none of that name; name one that it drew")
        said = {"key_figure": key_figure, "figure": figure, "time": time.time()}
        write_json(self.directory / "finished.json", said)
        if RUN_ID_VARIABLE in os.environ:  # the runner writes the report
            return
        from IPython.display import Markdown, display

        self.say(key_figure)
        display(
            Markdown(f"Results are in `{self.directory}`. A report of the same: `{self._command()}` in a terminal.")
        )

    def _command(self) -> str:
        """Return the command that makes a report with these values."""
        given = [
            f"-p {shlex.quote(f'{field.name}={_typed(value)}')}"
            for field in dataclasses.fields(self.config)  # type: ignore[arg-type]
            if (value := getattr(self.config, field.name)) != _default(field)
        ]
        return " ".join(["quarl run", self.study, "--preset smoke", *given])


def _typed(value: object) -> str:
    """Return a value as a command line gives it."""
    return ",".join(map(str, value)) or "[]" if isinstance(value, list) else str(value)


def _default(field: dataclasses.Field) -> Any:  # type: ignore[type-arg]
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
