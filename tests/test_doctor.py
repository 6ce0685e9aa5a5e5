"""The doctor says what is missing, and what to do about it."""

from __future__ import annotations

import json
from collections import namedtuple

import pytest

from quarl_lib import cli, doctor


def test_findings_cover_what_a_user_asks(capsys):
    assert cli.main(["doctor", "--json"]) == 0, "this checkout's tests run, so its studies can"
    findings = {finding["topic"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {"Python", "tested versions", "extra reverb", "CPU", "cores", "memory", "disk", "GL backend", "energy",
            "kernel", "engines, linear layers"} <= set(findings)  # fmt: skip
    assert all(precision in findings["engines, linear layers"]["found"] for precision in ("fp32", "int8", "int4"))
    for finding in findings.values():
        assert finding["level"] == "ok" or finding["remedy"], f"{finding['topic']}: says no remedy"


def test_missing_package_is_bad_with_a_remedy_and_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["torch>=2", "no-such-package; python_version>'3'"])
    assert doctor.show() == 1
    said = capsys.readouterr().out
    assert "✗ packages" in said
    assert "missing: no-such-package\n" in said
    assert "pip install -c constraints.txt" in said


def test_missing_extra_and_other_version_are_notes(monkeypatch, tmp_path):
    monkeypatch.setitem(doctor.EXTRAS, "atari", ("cv2", "no_such_module"))
    (finding,) = [one for one in doctor._extras() if one.topic == "extra atari"]
    assert (finding.level, finding.found) == ("note", "missing: no_such_module")
    assert ".[atari]" in finding.remedy
    (tmp_path / "constraints.txt").write_text("numpy==0.1\n")
    (python, versions) = doctor._python(tmp_path)
    assert (python.level, versions.level) == ("ok", "note")
    assert "(tested: 0.1)" in versions.found


def test_where_reverb_has_no_build_nothing_is_to_be_done(monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "reverb", ("no_such_module",))
    monkeypatch.setattr(doctor.platform, "machine", lambda: "aarch64")
    (finding,) = [one for one in doctor._extras() if one.topic == "extra reverb"]
    assert finding.level == "note"
    assert finding.found == "has builds for Linux on x86-64 with Python 3.11 alone"
    assert "local replay" in finding.remedy


def test_full_disk_is_noted(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(10, 10, 0))
    (disk,) = [one for one in doctor._machine(tmp_path) if one.topic == "disk"]
    assert disk.level == "note"
    assert "--output" in disk.remedy


@pytest.mark.parametrize(("readable", "level"), [(True, "ok"), (False, "note")])
def test_energy_is_measured_only_where_the_counter_can_be_read(monkeypatch, tmp_path, readable, level):
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1")
    monkeypatch.setattr(doctor, "RAPL", tmp_path)
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: readable)
    (finding,) = doctor._energy()
    assert finding.level == level
    assert finding.found.startswith("measured" if readable else "modelled")
