"""What a notebook prints is kept within bounds: by hand, as a property, and in a real run."""

from __future__ import annotations

import json

from conftest import add_study
from hypothesis import given
from hypothesis import strategies as st

from quarl_lib.reports import index
from quarl_lib.suite import plan, runner, streams


def test_cap_by_hand():
    assert streams.capped("abcdefgh", 3, 2) == "abc\n… 3 characters left out …\ngh"
    assert streams.capped("abcde", 3, 2) == "abcde"


@given(st.lists(st.text("ab", max_size=9), max_size=12), st.integers(1, 6), st.integers(1, 6))
def test_piece_by_piece_is_as_at_once(pieces, head, tail):
    cap = streams.Cap(head, tail)
    shown = "".join([cap.take(piece) for piece in pieces]) + cap.rest()
    assert shown == streams.capped("".join(pieces), head, tail)


def test_log_says_once_that_it_is_full():
    lines: list[str] = []
    log = streams.Log(lines.append, characters=10)
    for _ in range(5):
        log.add("abcd")
    assert lines[:3] == ["abcd", "abcd", "ab"]
    assert len(lines) == 4
    assert "the log is full" in lines[3]


def test_notebook_that_prints_twenty_megabytes_makes_small_files(project):
    cell = "print('the beginning')\nfor _ in range(20):\n    print('x' * 1_000_000)\nprint('the end')"
    add_study(project, "loud", cell)
    (record,) = runner.run(plan.make(project, "loud", "smoke"), finished=index.add)
    assert record["state"] == "ok", record
    (folder,) = (project / "outputs" / "smoke" / "loud").glob("smoke-*")
    texts = {name: (folder / name).read_text() for name in ("notebook.ipynb", "report.html", "log.txt")}
    outputs = json.loads(texts["notebook.ipynb"])["cells"][3]["outputs"] or json.loads(texts["notebook.ipynb"])[
        "cells"][4]["outputs"]  # fmt: skip
    printed = "".join("".join(one["text"]) for one in outputs)
    assert printed.startswith("the beginning\nxxx")
    assert printed.endswith("xxx\nthe end\n")
    assert "… 19,8" in printed, "20,000,044 characters, less 150,000"
    for name, most in (("notebook.ipynb", 300_000), ("report.html", 400_000), ("log.txt", 5_300_000)):
        assert len(texts[name]) < most, name
        assert "the beginning" in texts[name]
    assert "the end" in texts["report.html"]
    assert "the log is full" in texts["log.txt"]
    assert len(texts["log.txt"]) > 2_000_000, "the log keeps more"
