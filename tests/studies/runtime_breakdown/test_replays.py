"""Two replays in turns: speeds and the paired ratio by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from quarl_lib.studies.runtime_breakdown import replays, study


def training(replay: str, number: int, wait_s: float) -> list[dict]:
    """Return a training's timing: 100 updates in 2 s beside waiting."""
    common = {"record": "replay", "replay": replay, "round": number}
    stages = (
        ("learner", "sample", wait_s, 100),
        ("learner", "learner_step", 2.0, 100),
        ("actor", "observe", 0.5, 1000),
    )
    names = ("part", "stage", "seconds", "count")
    return [{**common, **dict(zip(names, one, strict=True))} for one in stages]


def test_speed_is_paired_by_round():
    rows = (
        training("reverb", 0, 2.0) + training("local", 0, 0.0) + training("reverb", 1, 6.0) + training("local", 1, 2.0)
    )
    speeds = replays.speeds(pd.DataFrame(rows)).set_index("replay")
    assert speeds.over_reverb.to_dict() == pytest.approx({"reverb": 1.0, "local": 2.0})
    assert speeds.updates_per_s.to_dict() == pytest.approx({"reverb": (25 + 12.5) / 2, "local": (50 + 25) / 2})
    assert speeds.sample_ms["reverb"] == pytest.approx(40.0)
    assert speeds.observe_us["local"] == pytest.approx(500.0)
    assert "makes 2.00 x [2.00, 2.00] the updates" in replays.verdict(speeds.reset_index())


def test_without_reverb_nothing_is_compared():
    speeds = replays.speeds(pd.DataFrame(training("local", 0, 1.0)))
    assert speeds.over_reverb.isna().all()
    assert replays.verdict(speeds) == "Replays were not compared."
    assert replays.speeds(pd.DataFrame([{"record": "block"}])).empty


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replays": []}, "replays="),
        ({"replays": ["redis"]}, "replay='redis'"),
        ({"replay_rounds": -1}, "replay_rounds=-1"),
    ],
)
def test_bad_parameters_are_named(changes, said):
    with pytest.raises(ValueError, match=said):
        study.Config(**changes)
