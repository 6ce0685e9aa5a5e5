"""What a notebook uses to write its run: nothing half-written, nothing finished without results."""

# mypy: disable-error-code="operator, union-attr"
from __future__ import annotations

import json
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from PIL import Image

from quarl_lib import files, provenance, results


@dataclass(frozen=True)
class Config:
    bits: list[int] = field(default_factory=lambda: [2, 4])
    seed: int = 7

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: give 0 or more")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("QUARL_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("QUARL_RUN_ID", "smoke-12345678")
    return results.Run("dice", Config())


@pytest.fixture
def shown(monkeypatch):
    """Collect what is displayed as (data, metadata) by mime type."""
    collected = []

    def display(thing, metadata=None, **_):
        data = thing._repr_mimebundle_() if hasattr(thing, "_repr_mimebundle_") else None
        for mime, method in (
            ("text/html", "_repr_html_"),
            ("text/markdown", "_repr_markdown_"),
            ("image/png", "_repr_png_"),
        ):
            data = data or ({mime: getattr(thing, method)()} if hasattr(thing, method) else None)
        collected.append((data, metadata))

    monkeypatch.setattr("IPython.display.display", display)
    return collected


def test_config_comes_from_the_names_of_the_cell_and_missing_ones_are_named():
    assert results.from_parameters(Config, {"bits": [8], "seed": 1, "other": 3}) == Config([8], 1)
    with pytest.raises(ValueError, match="no parameter named bits, seed"):
        results.from_parameters(Config, {})
    with pytest.raises(ValueError, match="seed=-1"):
        results.from_parameters(Config, {"bits": [], "seed": -1})
    annotated = {"bits": [8], "seed": 1, "sede": 2, "__annotations__": {"bits": list, "seed": int, "sede": int}}
    with pytest.raises(ValueError, match="parameter sede: Config does not read it; take it out"):
        results.from_parameters(Config, annotated)


def test_run_is_finished_only_after_it_saved_itself(run, tmp_path):
    table = pd.DataFrame({"a": [1.5]})
    with pytest.raises(RuntimeError, match=r"before save\(\)"):
        run.finish("x")
    run.save(table, table)
    run.finish("half")
    assert json.loads((run.directory / "finished.json").read_text())["key_figure"] == "half"
    assert pd.read_parquet(run.directory / "results.parquet").equals(table)
    again = results.Run("dice", Config())
    assert not (run.directory / "finished.json").exists(), "a new run takes the mark away"
    with pytest.raises(RuntimeError, match=r"before save\(\)"):
        again.finish("the old results do not count")


def test_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "deep" / "table.csv"
    files.write_text(path, "old")

    def half(aside):
        aside.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        files.write_atomically(path, half)
    assert path.read_text() == "old"
    assert [one.name for one in path.parent.iterdir()] == ["table.csv"]
    path.write_text("{half")
    assert files.read_json(path) == {}


def test_figure_needs_a_description_and_carries_it_with_its_data(run, shown):
    ax = plt.subplots()[1]
    with pytest.raises(ValueError, match="says too little"):
        run.figure(ax, "f", alt="a plot")
    run.figure(ax, "bits", alt="Return over bits, one line an agent", data="cells")
    ((_, metadata),) = shown
    alt = "Return over bits, one line an agent"
    assert metadata == {"image/png": {"alt": alt, "caption": f"{alt}.", "name": "bits", "data": "cells.csv"}}
    assert (run.directory / "figures" / "bits.png").read_bytes()[:4] == b"\x89PNG"
    assert ax.figure.number not in plt.get_fignums(), "the figure is closed, so that it is not shown twice"


def test_long_table_is_cut_with_a_link_and_kept_whole_beside(run, shown):
    run.table(pd.DataFrame({"n": range(31), "mean": 0.123456}), "cells")
    (html, _), (note, _) = shown
    assert html["text/html"].count("<tr") == 31, "the head and thirty rows"
    assert "0.1235" in html["text/html"]
    assert note["text/markdown"] == "First 30 of 31 rows: [cells.csv](cells.csv)"
    assert len(pd.read_csv(run.directory / "cells.csv")) == 31


def test_provenance_says_commit_versions_features_seeds_and_run(run, shown):
    run.provenance()
    kept = json.loads((run.directory / "provenance.json").read_text())
    assert kept["run_id"] == "smoke-12345678"
    assert kept["seeds"] == {"seed": 7}
    assert kept["versions"]["torch"] == provenance.versions()["torch"]
    text = shown[0][0]["text/html"]
    for word in ("smoke-12345678", "seed 7", "commit", "torch"):
        assert word in text


def test_progress_is_stored_for_the_runner_and_the_end_is_never_left_out(run, capsys):
    for done in range(1, 101):
        run.progress(done, 100, "episodes")
    kept = json.loads((run.directory / "progress.json").read_text())
    assert (kept["done"], kept["total"], kept["what"]) == (100, 100, "episodes")
    assert capsys.readouterr().out == "\repisodes 100/100\n", "a batch prints little"


def test_cpu_features_are_read_from_the_flags(monkeypatch, tmp_path):
    text = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512_vnni fma\n\nprocessor\t: 1\nflags\t: none\n"
    monkeypatch.setattr(provenance.Path, "read_text", lambda self: text)
    assert provenance.cpu() == ("A CPU", ["avx2", "fma", "avx512_vnni"])


@pytest.mark.parametrize(
    ("number", "text"),
    [(500.0, "500"), (0.123456, "0.1235"), (12345.6, "12,346"), (1.5e-7, "1.5e-07"), (-99.99, "-99.99")],
)
def test_numbers_are_written_for_readers(number, text):
    assert results.as_text(number) == text


def test_figure_is_saved_for_papers_too_and_the_same_each_time(run):
    import matplotlib.pyplot as plt

    def save() -> dict[str, bytes]:
        _, ax = plt.subplots(figsize=(2, 1))
        ax.plot([0, 1], label="a line")
        run.figure(ax, "line", alt="A line that rises from zero to one")
        return {path.suffix: path.read_bytes() for path in (run.directory / "figures").glob("line.*")}

    first = save()
    assert sorted(first) == [".pdf", ".png", ".svg"]
    assert first[".pdf"].startswith(b"%PDF")
    assert b"/Type3" not in first[".pdf"], "venues refuse Type 3 fonts"
    assert b"<svg" in first[".svg"]
    assert save() == first


def test_refused_value_is_one_line_in_a_notebook():
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell()
    shell.user_ns.update({"results": results, "Config": Config})
    with capture_output() as said:
        shell.run_cell("results.from_parameters(Config, {'bits': [], 'seed': -1})")
    shown = (said.stdout + said.stderr).strip()
    assert shown.startswith("ValueError: seed=-1")
    assert len(shown.splitlines()) == 1


def test_finish_says_where_results_lie(run, monkeypatch):
    shown: list = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    table = pd.DataFrame({"a": [1.5]})
    run.save(table, table)
    run.finish("half of *it*")
    assert shown == [], "in a batch the runner says it"
    monkeypatch.delenv("QUARL_RUN_ID")
    run.finish("half of it")
    command = "quarl run dice --preset smoke"
    where = f"Results are in `{run.directory}`. A report of the same: `{command}` in a terminal."
    assert [one.data for one in shown] == ["half of it", where]
    changed = results.Run("dice", Config([8, 2], seed=1))
    changed.save(table, table)
    changed.finish("half of it")
    assert f"`{command} -p bits=8,2 -p seed=1`" in shown[-1].data
    with pytest.raises(ValueError, match="drew none of that name"):
        changed.finish("half", figure="nowhere")


def test_caption_counts_what_was_measured(run, shown):
    table = pd.DataFrame({"seed": [1, 1, 2], "value": [1.0, 2.0, 3.0]})
    run.save(table, pd.DataFrame({"mean": [1.5, 3.0, 0.0], "episodes": [10, 12, 0]}))
    run.save_table(pd.DataFrame({"agents": [6], "seeds": [1]}), "aggregate")
    captions = []
    for data in ("summary", "aggregate", "results"):
        run.figure(plt.subplots()[1], "f", "What is seen in it here", data=data, spread="Bars are 95 % intervals")
        captions.append(shown[-1][1]["image/png"]["caption"])
    assert captions == [
        "What is seen in it here. n: 2 seeds, 10 to 12 episodes. Bars are 95 % intervals.",
        "What is seen in it here. n: 6 agents, 1 seed. Bars are 95 % intervals.",
        "What is seen in it here. n: 2 seeds. Bars are 95 % intervals.",
    ]


def test_thumbnail_is_a_small_picture_of_its_own(run, shown):
    run.thumbnail(plt.subplots(figsize=(9, 9))[1])
    with Image.open(run.directory / "figures" / "thumbnail.png") as picture:
        assert picture.size == (784, 441)
    assert shown == [], "for the index, not for the notebook"


def test_somebody_who_looks_on_sees_a_bar_and_a_picture_so_far(tmp_path, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("QUARL_RUN_DIR", str(tmp_path))
    shell = InteractiveShell.instance()
    published: list = []
    monkeypatch.setattr(shell.display_pub, "publish", lambda data, *_, **more: published.append((data, more)))
    run = results.Run("dice", Config())
    run.live(lambda folder: pd.DataFrame({"a": [1.0]}), lambda table: table.plot())
    try:
        for done in range(1, 4):
            run._last_stored = 0.0
            run.progress(done, 3, "dice")
        shell.events.trigger("post_run_cell", None)
    finally:
        InteractiveShell.clear_instance()
    bars = [data["application/javascript"] for data, _ in published if "application/javascript" in data]
    assert [
        text in bar
        for text, bar in zip(("dice 1 of 3", "dice 2 of 3", "dice 3 of 3", "[null, 1.0]"), bars, strict=True)
    ]
    assert sum("image/png" in data or "Figure" in data.get("text/plain", "") for data, _ in published) == 1
