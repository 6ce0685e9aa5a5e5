"""Runs side by side save time; the pages of a suite stay small."""

from __future__ import annotations

import shutil
import time

import pytest
from conftest import TEMPLATE, add_study

from quarl_lib.reports import index
from quarl_lib.suite import plan, runner

WAITS = "import time\ntime.sleep(12)"  # a cell that takes no core, so that the ratio is the runner's own doing
SMALL_BYTES = 3_000_000


@pytest.mark.slow
def test_two_jobs_take_at_most_seven_tenths_of_the_time_of_one(tmp_path):
    project = tmp_path / "project"
    shutil.copytree(TEMPLATE, project)
    for name in ("first", "second"):
        add_study(project, name, WAITS)
    seconds = {}
    for jobs in (1, 2):
        runs = plan.make(project, "first,second", "smoke", suite=f"jobs{jobs}")
        begin = time.perf_counter()
        records = runner.run(runs, runner.Options(jobs=jobs), finished=index.add)
        seconds[jobs] = time.perf_counter() - begin
        assert [record["state"] for record in records] == ["ok", "ok"]
    assert seconds[2] <= 0.7 * seconds[1], seconds
    pages = [*(project / "outputs").rglob("*.html")]
    assert len(pages) >= 2 * 3, "two suites, each two reports and an index"
    assert sum(page.stat().st_size for page in pages) < SMALL_BYTES
