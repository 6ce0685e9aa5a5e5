"""Runs side by side: deltas and intervals by hand, what differed, and the page about the paper."""

from __future__ import annotations

import json
import re

import pandas as pd
import pytest

from quarl_lib import cli
from quarl_lib.reports import comparison, index, paper
from quarl_lib.suite import states


def make_run(suite, study, name, table, **facts):
    folder = suite / study / name
    folder.mkdir(parents=True)
    table.to_csv(folder / "summary.csv", index=False)
    states.change(folder, "ok", study=study, run_id=name, suite=suite.name, title=study.title(), started=1.0, **facts)
    return folder


def summary(**means):
    rows = [(agent, "int8", 10, mean, mean - 1, mean + 1) for agent, mean in means.items()]
    return pd.DataFrame(rows, columns=["agent", "precision", "episodes", "mean_return", "ci_low", "ci_high"])


def test_rows_are_matched_by_their_names_and_deltas_are_right():
    wide = comparison.side_by_side({"a": summary(x=100.0, y=50.0), "b": summary(y=51.0, x=90.0)})
    assert list(wide.agent) == ["x", "y"]
    assert list(wide["mean_return · a"]) == [100.0, 50.0]
    assert list(wide["mean_return · b"]) == [90.0, 51.0]
    assert list(wide["Δ mean_return · b"]) == ["-10*", "+1"], "[89, 91] is apart from [99, 101]; [50, 52] is not"
    assert "Δ ci_low · b" not in wide


def test_rows_that_only_numbers_tell_apart_are_matched_by_whole_numbers():
    first = pd.DataFrame({"agent": ["x", "x"], "weight_bits": [2, 4], "mean_return": [1.0, 2.0]})
    wide = comparison.side_by_side({"a": first, "b": first.iloc[::-1]})
    assert list(wide["Δ mean_return · b"]) == [0.0, 0.0]


def test_row_on_one_side_only_stays():
    wide = comparison.side_by_side({"a": summary(x=1.0), "b": summary(z=2.0)})
    assert len(wide) == 2
    assert wide["mean_return · a"].isna().sum() == 1


def test_page_shows_summaries_and_only_what_differs(tmp_path, capsys):
    same = {"cpu": "A CPU", "versions": {"torch": "2.13", "numpy": "1.26"}}
    make_run(tmp_path / "one", "dice", "r1", summary(x=100.0), parameters={"bits": 2, "seed": 0}, **same)
    make_run(tmp_path / "two", "dice", "r2", summary(x=90.0), parameters={"bits": 4, "seed": 0}, **same)
    make_run(tmp_path / "two", "only_there", "r3", summary(x=1.0))
    page = tmp_path / "side.html"
    assert cli.main(["compare", str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(page)]) == 0
    text = page.read_text()
    assert '<td>parameter bits</td><td class="long">2</td><td class="long">4</td>' in text
    for same_words in ("parameter seed", "A CPU", "version of torch", "only_there"):
        assert same_words not in text
    assert "-10*" in text
    assert 'href="one/dice/r1/report.html"' in text
    assert list(pd.read_csv(tmp_path / "side_dice.csv")["mean_return · two"]) == [90.0]


@pytest.mark.parametrize("folders", [["one"], ["one", "none"], ["one", "one"], ["one", "other"]])
def test_what_cannot_be_compared_is_refused(tmp_path, folders):
    make_run(tmp_path / "one", "dice", "r1", summary(x=1.0))
    make_run(tmp_path / "other", "cards", "r1", summary(x=1.0))
    with pytest.raises(ValueError, match=r"compare|no run here"):
        comparison.build([tmp_path / name for name in folders], tmp_path / "out.html")


def test_front_page_lists_every_table_and_figure_with_our_numbers_beside(tmp_path):
    suite = tmp_path / "laptop"
    folder = make_run(suite, "qat_bit_sweep", "r1", summary(x=1.0), key_figure="4 bits do",
                      figures=[{"name": "sweep", "alt": "Return over bits"}])  # fmt: skip
    (folder / "report.html").write_text("")
    (folder / "figures").mkdir()
    (folder / "figures" / "sweep.png").write_bytes(b"")
    rows = [
        ("Figure 10", "CartPole at 4 bits", "500", 499.123456, "2 seeds"),
        ("Table 2", "elsewhere", "1", 2.0, "same"),
    ]
    beside = pd.DataFrame(rows, columns=["item", "what", "paper", "ours", "setting"])
    beside.to_csv(folder / "beside_paper.csv", index=False)
    index.build(suite)
    text = (suite / "paper.html").read_text()
    assert 'href="paper.html"' in (suite / "index.html").read_text()
    for name in [f"Table {n}" for n in range(1, 5)] + [f"Figure {n}" for n in range(1, 12)]:
        assert f'id="{name.lower().replace(" ", "-")}"' in text
    part = text.split('id="figure-10"')[1].split("<h2")[0]
    for words in ("CartPole at 4 bits", ">499<", "2 seeds", "4 bits do", "qat_bit_sweep/r1/report.html", "sweep.png"):
        assert words in part
    assert "elsewhere" not in part
    assert "answers 1 of 15" in text
    assert text.count('<span class="badge not run">not run</span>') == sum(
        len(item.studies) for item in (*paper.ITEMS, *paper.BEYOND)) - 1  # fmt: skip


def test_what_goes_beyond_the_paper_has_a_part_of_its_own_and_answers_no_figure(tmp_path):
    suite = tmp_path / "laptop"
    folder = make_run(suite, "quantized_rollouts", "r1", summary(x=1.0), key_figure="1.7 x")
    (folder / "report.html").write_text("")
    index.build(suite)
    text = (suite / "paper.html").read_text()
    beyond = text.split('<h2 id="beyond-the-paper">Beyond the paper</h2>')[1]
    for words in ("1.7 x", "quantized_rollouts/r1/report.html", '<span class="badge ok">ok</span>'):
        assert words in beyond
    assert "answers 0 of 15" in text
    assert 'href="#beyond-the-paper"' in text


def test_suite_that_answers_nothing_has_no_front_page(tmp_path):
    make_run(tmp_path / "smoke", "dice", "r1", summary(x=1.0))
    index.build(tmp_path / "smoke")
    assert not (tmp_path / "smoke" / "paper.html").exists()
    assert json.loads((tmp_path / "smoke" / "dice" / "r1" / "run.json").read_text())["state"] == "ok"


def test_rows_that_differ_come_first_and_alone_into_a_page_in_outputs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QUARL_PROJECT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    agents = {f"agent{n}": float(n) for n in range(40)}
    moved = {**agents, "agent7": 9.5, "agent8": 3.0}
    for name, means in (("one", agents), ("two", moved)):
        make_run(tmp_path / "outputs" / name, "dice", "r", summary(**means))
    assert cli.main(["compare", "outputs/one", "outputs/two"]) == 0
    page = tmp_path / "outputs" / "comparisons" / "one_two.html"
    assert capsys.readouterr().out.strip() == str(page)
    assert not list(tmp_path.glob("*.html"))
    text = page.read_text()
    assert "2 of 40 rows differ." in text
    rows = re.findall(r"<tr>(.*?)</tr>", text.split('side by side"')[1], re.DOTALL)
    assert ["agent8" in rows[1], "agent7" in rows[2], len(rows)] == [True, True, 3], "the largest first"
    assert re.findall(r"<td[^>]*>([^<]*)", rows[1])[:4] == ["agent8", "-5*", "8", "3"]
    assert "Difference of mean return, two less the first, in 2 rows that differ, 2 of them" in text
    assert len(pd.read_csv(page.with_name("one_two_dice.csv"))) == 40, "the CSV has every row"


def test_equal_runs_say_so(tmp_path):
    for name in ("one", "two"):
        make_run(tmp_path / name, "dice", "r", summary(x=1.0))
    text = comparison.build([tmp_path / "one", tmp_path / "two"], tmp_path / "c.html").read_text()
    assert "All 1 rows are the same." in text
    assert "<figure>" not in text
