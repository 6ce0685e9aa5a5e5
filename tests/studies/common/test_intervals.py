"""Intervals in words and pictures: brackets, error bars and bands, and what stands where there is none."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from quarl_lib.studies.common import intervals

NONE = math.nan


def test_brackets_say_why_there_is_no_interval():
    assert intervals.brackets(1.204, 1.4) == "[1.20, 1.40]"
    assert intervals.brackets(449.6, 470.2, "seed", ".0f") == "[450, 470]"
    assert intervals.brackets(NONE, NONE) == "(one round: no interval)"
    assert intervals.brackets(NONE, NONE, "seed") == "(one seed: no interval)"


def test_bars_are_distances_and_leave_out_what_is_not_there():
    table = pd.DataFrame({"estimate": [2.0, 3.0], "low": [1.5, NONE], "high": [4.0, NONE]})
    distances = intervals.bars(table.estimate, table.low, table.high)
    np.testing.assert_array_equal(distances, [[0.5, NONE], [2.0, NONE]])  # type: ignore[arg-type]
    alone = table.tail(1)
    assert intervals.bars(alone.estimate, alone.low, alone.high) is None


@pytest.mark.filterwarnings("error")
def test_a_bar_beside_a_missing_one_is_drawn_alone():
    figure, ax = plt.subplots()
    ax.errorbar([0, 1], [2.0, 3.0], yerr=np.array([[0.5, NONE], [2.0, NONE]]), capsize=2, ls="")
    (lines,) = ax.collections
    assert [segment.tolist() for segment in lines.get_segments() if len(segment)] == [[[0, 1.5], [0, 4.0]]]  # type: ignore[attr-defined]
    figure.canvas.draw()
    plt.close(figure)


def test_a_band_is_drawn_where_there_is_an_interval():
    figure, ax = plt.subplots()
    assert not intervals.band(ax, NONE, NONE)
    assert not ax.patches
    assert intervals.band(ax, 1.0, 2.0)
    assert len(ax.patches) == 1
    plt.close(figure)
