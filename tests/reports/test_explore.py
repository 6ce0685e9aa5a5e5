"""The explorer: which rows a filter keeps, figures redrawn from them, and what it says where it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from explored import AGENTS, RETURNS, edit_notebook, write_run

from quarl_lib.reports.explore import drawings, panel, rows
from quarl_lib.reports.explore.finished import FinishedRun, finished_runs
from quarl_lib.suite import states


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("explored") / "outputs"
    write_run(root / "smoke")
    write_run(root / "laptop", "laptop-1", shift=7.0)
    failed = write_run(root / "laptop", "laptop-2")
    states.change(failed, "failed")
    return root


@pytest.fixture
def run(outputs) -> FinishedRun:
    return next(run for run in finished_runs(outputs) if run.suite == "smoke")


def drawn(run: FinishedRun, figure: str, **choice: list[str]):
    figure, notes = drawings.drawn(run, drawings.read(run), figure, choice)
    plt.close("all")
    return figure, notes


def test_finished_runs_are_found_newest_first_without_failed_ones(outputs):
    assert [run.directory.name for run in finished_runs(outputs)] == ["laptop-1", "smoke-12345678"]


def test_labels_join_what_names_an_agent():
    table = pd.DataFrame({"algorithm": ["PPO"], "env_id": ["CartPole-v1"], "method": ["qat"], "weight_bits": [4.0]})
    assert rows.choices(table, "agent") == ["PPO CartPole-v1"]
    assert rows.choices(table, "precision") == ["qat 4"]
    assert rows.choices(table, "seed") == []


def test_seeds_are_in_order_and_a_row_without_one_belongs_to_all():
    table = pd.DataFrame({"seed": [10.0, 2.0, None], "value": [1, 2, 3]})
    assert rows.choices(table, "seed") == ["2", "10"]
    assert list(rows.keep(table, {"seed": ["2"]}).value) == [2, 3]


def test_figures_are_read_from_the_notebook(run):
    source = drawings.read(run)
    assert set(source.calls) == {
        "aggregate", "return_over_bits", "relative_error", "kl_divergence", "return_by_observation",
        "kept_under_disturbance", "which_bits_fail",
    }  # fmt: skip
    assert source.files["table"] == "results"
    assert source.files["scores"] == "aggregate"
    assert "one panel per agent" in source.alts["return_over_bits"]


def test_agents_and_precisions_leave_the_figure(run):
    whole, notes = drawn(run, "return_over_bits")
    assert [ax.get_title() for ax in whole.axes] == list(AGENTS)
    assert notes == []
    part, notes = drawn(run, "return_over_bits", agent=["ppo/Pendulum-v1"], precision=["fp32", "int8"])
    (ax,) = part.axes
    assert ax.get_title() == "ppo/Pendulum-v1"
    assert [list(line.get_ydata()) for line in ax.containers[0].lines[:1]] == [[RETURNS["int8"] - 10]]
    assert notes == []


def test_seeds_have_the_summary_computed_anew(run):
    figure, notes = drawn(run, "return_over_bits", seed=["0"])
    heights = figure.axes[0].containers[0].lines[0].get_ydata()
    assert sorted(heights) == [RETURNS["int4"], RETURNS["int8"]], "seed 0 alone, not the mean over three"
    assert notes == []


def test_what_cannot_be_computed_anew_is_shown_whole_and_says_so(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "quarl_lib.studies.ptq_study.study", None)
    from quarl_lib.studies import ptq_study

    for name in ("summarize", "Config", "run", "study"):
        monkeypatch.delattr(ptq_study, name, raising=False)
    figure, (note,) = drawn(run, "return_over_bits", seed=["0"])
    assert RETURNS["int8"] - 10 in figure.axes[0].containers[0].lines[0].get_ydata()
    assert note.startswith("summary.csv has no column of seed")
    assert note.endswith("shown whole.")


def test_rows_that_make_no_figure_leave_a_line_and_the_runs_own_picture(run):
    figure, (note,) = drawn(run, "return_over_bits", agent=["no such agent"])
    assert figure is None
    assert "No row is left" in note
    own = run.directory / "figures" / "return_over_bits.png"
    own.write_bytes(b"a picture")
    text = panel.part(run, "return_over_bits", {"agent": ["no such agent"]}, [run])
    assert "YSBwaWN0dXJl" in text, "base64 of what the run drew"
    assert "of all its rows" in text
    own.unlink()


@pytest.mark.parametrize(
    "call",
    [
        "figures.return_panels(summary.to_csv('gone'))",
        "figures.pd.read_pickle('x')",
        "figures.plt.savefig('x')",
        "study.run(config)",
        "__import__('os').system('touch gone')",
        "figures.return_panels(open('gone', 'w'))",
        "[figures for one in ()].append(1)",
        "summary.__class__",
    ],
)
def test_nothing_but_the_studys_functions_over_saved_tables_is_evaluated(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "smoke")
    edit_notebook(folder, "figures.return_panels(summary),", f"{call},")
    figure, notes = drawn(FinishedRun(folder), "return_over_bits")
    assert figure is None
    assert "NotUnderstood" in notes[-1] or "KeyError: '__class__'" in notes[-1]
    assert not list(tmp_path.glob("gone*"))


def test_a_module_that_is_not_the_studys_is_not_called(tmp_path):
    folder = write_run(tmp_path / "smoke")
    edit_notebook(folder, "from quarl_lib.studies.ptq_study import figures, sentences", "import os as figures")
    figure, notes = drawn(FinishedRun(folder), "return_over_bits")
    assert figure is None
    assert "no function of the study" in notes[-1]


def test_choosing_and_filtering_changes_what_is_shown(outputs):
    explorer = panel.Explorer(finished_runs(outputs))
    assert (explorer.suite.value, explorer.study.value) == ("laptop", "ptq_study")
    explorer.suite.value = "smoke"
    assert explorer.filters["agent"].options == tuple(AGENTS)
    explorer.figure.value = "return_over_bits"
    before = explorer.shown.children[0].value
    assert "18 of 18 rows" in before
    explorer.filters["agent"].value = ("a2c/CartPole-v1",)
    after = explorer.shown.children[0].value
    assert "9 of 18 rows" in after
    assert before.split("base64,")[1][:20000] != after.split("base64,")[1][:20000], "another picture"
    explorer.beside.value = next(run.directory for run in finished_runs(outputs) if run.suite == "laptop")
    first, second = (child.value for child in explorer.shown.children)
    assert "shifted by 0" in first
    assert "shifted by 7" in second
    assert "Both have the same parameters" in second
    plt.close("all")


def test_without_a_run_it_says_what_to_run(tmp_path):
    assert "quarl run ptq_study --preset smoke" in panel.show(tmp_path).value


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy}:
            raise ModuleNotFoundError("not installed", name=name)
sys.meta_path.insert(0, Missing())
import importlib, pathlib
import matplotlib
matplotlib.use("agg")
from quarl_lib.reports.explore import drawings, finished, panel
run = finished.finished_runs(pathlib.Path({outputs!r}))[0]
figure, notes = drawings.drawn(run, drawings.read(run), "return_over_bits", {{"agent": ["ppo/Pendulum-v1"]}})
assert len(figure.axes) == 1 and notes == [], notes
figure, notes = drawings.drawn(run, drawings.read(run), "return_over_bits", {{"seed": ["0"]}})
assert figure is not None and "needs the package torch" in notes[0], notes
for path in pathlib.Path(finished.__file__).parents[2].glob("studies/*/figures.py"):
    importlib.import_module(f"quarl_lib.studies.{{path.parent.name}}.figures")
panel.Explorer(finished.finished_runs(pathlib.Path({outputs!r})))
"""
HEAVY = {
    "torch", "tensorflow", "reverb", "acme", "stable_baselines3", "sb3_contrib", "gymnasium", "dm_control", "dm_env",
    "mujoco", "onnx", "onnxruntime", "jax", "codecarbon",
}  # fmt: skip


def test_works_without_any_of_the_heavy_packages(outputs):
    code = WITHOUT.format(heavy=HEAVY, outputs=str(outputs))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
