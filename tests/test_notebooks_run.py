"""Every notebook runs top to bottom at its smoke values, within two minutes, and leaves no process behind."""

from __future__ import annotations

import pytest

from quarl_lib.results import PROJECT
from quarl_lib.suite import plan, processes, runner

STUDIES = [path.stem.split("_", 1)[1] for path in sorted((PROJECT / "notebooks").glob("*.ipynb"))]


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_runs_top_to_bottom(study, tmp_path):
    (task,) = plan.make(PROJECT, study, "smoke", output=tmp_path)
    (record,) = runner.run([task], runner.Options(timeout_s=120))
    assert record["state"] == "ok", record["reason"]
    assert list((task.directory / "figures").glob("*.png"))
    assert (task.directory / "summary.csv").stat().st_size > 0
    assert not processes.of_run(task.directory)
