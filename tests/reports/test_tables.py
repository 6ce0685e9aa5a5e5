"""Tables as a reader gets them, by hand: names, units, digits, order; the same table as LaTeX."""

from __future__ import annotations

import re

import bs4
import pandas as pd
import pytest

from quarl_lib import cli
from quarl_lib.reports import latex, tables


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("duration_s", "duration (s)"),
        ("us_median", "median (µs)"),
        ("energy_kwh", "energy (kWh)"),
        ("env_id", "environment"),
        ("mean_return", "mean return"),
        ("ci_low", "95 % interval low"),
        ("Δ mean_return · two", "Δ mean_return · two"),
        ("agent", "agent"),
        ("s", "s"),
    ],
)
def test_headings_are_words_with_their_unit(name, said):
    assert tables.heading(name) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("499.1234", "499"), ("0.00033333", "0.000333"), ("12345.6", "12,346"), ("4096", "4096"), ("nan", "–"),
        ("-1.239", "-1.24"), ("2.13.0", "2.13.0"), ("int8", "int8"), ("1e-07", "1e-07"), ("", "–"),
    ],
)  # fmt: skip
def test_three_significant_digits_and_whole_numbers_whole(text, said):
    assert tables.short(text) == said


def laid_out(table: pd.DataFrame) -> tuple[list[list[str]], str]:
    page = bs4.BeautifulSoup(table.to_html(index=False), "html.parser")
    same = tables.lay_out(page, page.table)
    return [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in page.find_all("tr")], same


def test_name_then_results_then_the_rest_and_what_is_the_same_leaves():
    table = pd.DataFrame({
        "algorithm": ["A2C", "A2C", "PPO"], "agent": ["a2c/x", "a2c/y", "ppo/x"], "num_bits": [8, 8, 4],
        "episodes": [10, 10, 10], "mean_return": [499.123, 12.5, 0.25], "warning": ["", "slow", ""],
    })  # fmt: skip
    rows, same = laid_out(table)
    assert same == "episodes 10"
    assert rows == [
        ["agent", "mean return", "algorithm", "num bits", "warning"],
        ["a2c/x", "499", "A2C", "8", ""], ["a2c/y", "12.5", "A2C", "8", "slow"], ["ppo/x", "0.25", "PPO", "4", ""],
    ]  # fmt: skip


def test_columns_that_only_together_name_a_row_stand_in_one():
    table = pd.DataFrame({"agent": ["x", "x", "y", "y"], "bits": [2, 4, 2, 4], "mean_return": [1.5, 2.0, 3.0, 4.0]})
    rows, _ = laid_out(table)
    assert rows[:2] == [["agent · bits", "mean return"], ["x · 2", "1.5"]]


def test_one_row_and_tables_with_spans_stay_as_they_are():
    assert laid_out(pd.DataFrame({"a": [1.0], "b": [2]})) == ([["a", "b"], ["1", "2"]], "")
    page = bs4.BeautifulSoup(
        "<table><tr><th colspan=2>a</th></tr><tr><td>1.234</td><td>2</td></tr></table>", "html.parser"
    )
    assert tables.lay_out(page, page.table) == ""
    assert "1.234" in str(page)


def test_latex_is_booktabs_and_escapes_what_latex_would_read():
    table = pd.DataFrame({"agent": ["a_b", "50% & {c}"], "episodes": [10, 10], "mean_return": [499.123, float("nan")]})
    text = latex.as_latex(table, "summary of a_run")
    assert "\\caption{summary of a\\_run; episodes 10.}" in text
    body = re.findall(r"\\toprule\n(.*) \\\\\n\\midrule\n(.*) \\\\\n(.*) \\\\\n\\bottomrule", text)
    assert body == [("agent & mean return", "a\\_b & 499", "50\\% \\& \\{c\\} & --")]


def test_report_latex_writes_a_table_beside_each_csv(tmp_path, capsys):
    folder = tmp_path / "smoke" / "dice" / "smoke-1"
    folder.mkdir(parents=True)
    (folder / "notebook.ipynb").write_text('{"cells": []}')
    (folder / "summary.csv").write_text("sides,mean\n4,2.5\n6,3.5\n")
    (folder / "empty.csv").write_text("")
    assert cli.main(["report", str(folder), "--latex"]) == 0
    assert str(folder / "summary.tex") in capsys.readouterr().out
    assert "4 & 2.5" in (folder / "summary.tex").read_text()
    assert not (folder / "empty.tex").exists()
