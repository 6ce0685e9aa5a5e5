"""Every notebook runs top to bottom at its smoke values, within two minutes, and leaves no process behind.

What its report then shows, in tables and in sentences, stands in the tables that it leaves.
"""

from __future__ import annotations

import importlib

import numpy as np
import pandas as pd
import pytest
import shown_numbers

from quarl_lib.results import PROJECT
from quarl_lib.suite import catalog, plan, processes, runner

STUDIES = list(catalog.find_studies(PROJECT))


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_runs_top_to_bottom(study, tmp_path):
    (task,) = plan.make(PROJECT, study, "smoke", output=tmp_path)
    (record,) = runner.run([task], runner.Options(timeout_s=120))
    assert record["state"] == "ok", record["reason"]
    assert list((task.directory / "figures").glob("*.png"))
    assert (task.directory / "summary.csv").stat().st_size > 0
    assert not processes.of_run(task.directory)
    values, rows = shown_numbers.stored(task.directory), len(pd.read_csv(task.directory / "summary.csv"))
    module = vars(importlib.import_module(f"quarl_lib.studies.{study}.sentences"))
    criteria = [value for name, value in module.items() if name.isupper() and isinstance(value, int | float)]
    values = np.sort([*values, *criteria])
    sentences = shown_numbers.said(task.directory)
    assert sum(len(shown_numbers.numbers(text)) for text in sentences) >= 3
    # Whole numbers in sentences may count rows of the summary.
    assert {text: found for text in sentences if (found := shown_numbers.strangers(text, values, max(rows, 10)))} == {}
    assert {text for text in shown_numbers.cells(task.directory) if shown_numbers.strangers(text, values)} == set()
