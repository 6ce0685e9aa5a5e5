"""The numbers that a finished run's report shows, and those that its tables hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

NUMBER = re.compile(r"[-−+]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?(e[-+]?\d+)?")
MOST = 300
SCALES = (1.0, 1e2, 1e3, 1e-3, 1e6, 1e-6)  # per cent and the units of one quantity


def stored(directory: Path) -> np.ndarray:
    """Return the numbers in the run's tables and parameters, sorted.

    A column of more than `MOST` different values holds raw measurements, among which any number would be found.
    """
    tables = [pd.read_parquet(directory / "results.parquet"), *map(pd.read_csv, sorted(directory.glob("*.csv")))]
    columns = [np.asarray(table[name], float) for table in tables for name in table.select_dtypes("number")]
    found = [column for column in map(np.unique, columns) if len(column) <= MOST]
    texts = [str(text) for table in tables for column in table.select_dtypes(exclude="number") for text in
             table[column].dropna().unique()]  # fmt: skip
    found.append(np.array([value for text in texts for value, _ in numbers(text)], float))
    values = np.concatenate(found)
    return np.unique(np.abs(values[np.isfinite(values)]))


def said(directory: Path) -> list[str]:
    """Return the sentences that the notebook built, and the run's line in the index."""
    notebook = json.loads((directory / "notebook.ipynb").read_text())
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    texts = [
        "".join(output["data"]["text/markdown"]) for output in outputs if "text/markdown" in output.get("data", {})
    ]
    return [*texts, json.loads((directory / "finished.json").read_text())["key_figure"]]


def cells(directory: Path) -> list[str]:
    """Return the texts of all cells of the tables that the notebook shows."""
    notebook = json.loads((directory / "notebook.ipynb").read_text())
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    pages = ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    return [text for page in pages for text in re.findall(r"<td>([^<]*)</td>", page)]


def numbers(text: str) -> list[tuple[float, float]]:
    """Return (value, half a unit of its last digit) of every number that stands alone; names such as int8 have none."""
    found = []
    for word in re.split(r"[\s/|]+", text):
        bare = word.strip("[]().,;:*×x%~`<>=")
        if match := NUMBER.fullmatch(bare):
            digits = match[3] or ""
            value = abs(float(bare.replace(",", "").replace("−", "-")))
            exponent = int(match[4][1:]) if match[4] else 0
            half = 0.5 * 10.0 ** (exponent - max(len(digits) - 1, 0))
            found.append((value, half))
    return found


def strangers(text: str, values: np.ndarray, counts_to: int = 0) -> list[float]:
    """Return the numbers of a text that no table has, at any scale; whole numbers up to `counts_to` count rows."""
    missing = []
    for value, half in numbers(text):
        if value <= counts_to and value == int(value) and half == 0.5:
            continue
        near = (
            np.searchsorted(values, (value - half * 1.001) / scale)
            < np.searchsorted(values, (value + half * 1.001) / scale)
            for scale in SCALES
        )
        if not any(near):
            missing.append(value)
    return missing
