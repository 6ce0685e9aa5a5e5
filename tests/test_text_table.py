"""Tables for a terminal, laid out by hand."""

from __future__ import annotations

import pytest

from quarl_lib.text_table import text_table

ROWS = [
    {"agent": "ppo/CartPole-v1", "weights": "4,610", "runs on": "native"},
    {"agent": "dqn/Acrobot-v1", "weights": "68,355", "runs on": "native", "note": "trained on another version"},
    {"agent": "sac/Broken-v0", "note": "refused: the folder holds no archive"},
]


def test_columns_are_aligned_numbers_to_the_right_and_notes_below():
    assert text_table(ROWS, ["agent", "weights", "played in", "runs on"], 80).split("\n") == [
        "agent            weights  runs on",
        "ppo/CartPole-v1    4,610  native",
        "dqn/Acrobot-v1    68,355  native",
        "                 trained on another version",
        "sac/Broken-v0    refused: the folder holds no archive",
    ]


def test_what_is_too_wide_for_the_terminal_is_wrapped():
    assert text_table(ROWS, ["agent", "weights", "runs on"], 30).split("\n") == [
        "agent         weights  runs on",
        "ppo/CartPole    4,610  native",
        "-v1",
        "dqn/Acrobot-   68,355  native",
        "v1",
        "              trained on",
        "              another version",
        "sac/Broken-   refused: the",
        "v0            folder holds no",
        "              archive",
    ]


@pytest.mark.parametrize("width", [1, 20, 33, 50])
def test_no_line_passes_the_terminals_edge_but_where_names_need_more(width):
    lines = text_table(ROWS, ["agent", "weights", "runs on"], width).split("\n")
    assert max(map(len, lines)) <= max(width, 28)
