"""Quantized agents in a world that is not quite that of their training: by hand, and on agents of the package."""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

from typing import Any

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces

from quarl_lib.envs import disturbed
from quarl_lib.sb3 import Agent
from quarl_lib.studies import ptq_study
from quarl_lib.studies.ptq_study import cells, figures, sentences, study

TINY: dict[str, Any] = {"episodes": 3, "calibration_steps": 200, "kl_states": 50, "workers": 1, "quantizers": ["paper"]}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    config = study.Config(
        env_ids=["CartPole-v1", "Pendulum-v1"], algorithms=["PPO"], precisions=["fp32", "fp16", "int8"],
        disturbances=["observation_noise=0.2", "action_delay=3", "body_mass=2"], engines=["simulated"],
        observation_quantization=["per_tensor", "none"], **TINY,
    )  # fmt: skip
    return study.run(config)


def test_each_precision_plays_the_same_episodes_under_each(table):
    ppo = table[(table.agent == "ppo/CartPole-v1") & (table.engine == "simulated")]
    for name in ("observation_noise=0.2", "action_delay=3"):
        rows = ppo[ppo.disturbance == name]
        assert rows.groupby(["precision", "observation"]).seed.apply(list).to_dict() == {
            ("fp32", "none"): [0, 1, 2], ("fp16", "per_tensor"): [0, 1, 2], ("int8", "per_tensor"): [0, 1, 2],
        }  # fmt: skip
    alone = ppo[(ppo.disturbance == "none") & (ppo.precision == "fp32")].episode_return
    late = ppo[(ppo.disturbance == "action_delay=3") & (ppo.precision == "fp32")].episode_return
    assert late.mean() < 450 <= alone.mean()  # three steps late, a pole falls


def test_what_an_environment_cannot_take_is_one_row_and_costs_no_other(table):
    rows = ptq_study.robustness(table)
    refused = rows[rows.disturbance == "body_mass=2"]
    assert refused.agent.tolist() == ["ppo/CartPole-v1", "ppo/Pendulum-v1"]
    assert refused.error.tolist() == [f"body_mass: {env_id} has no MuJoCo model" for env_id in refused.env_id]
    measured = rows[rows.error == ""]
    assert len(measured) == 2 * 3 * 3  # agents, disturbances and none, precisions
    assert (measured[measured.precision == "fp32"].kept == 1).all()
    assert sentences.undisturbed(rows).agent.tolist() == refused.agent.tolist()
    summary = study.summarize(table)
    assert (summary.error == "").all()
    assert len(summary) == 2 * 4  # fp32, fp16, int8 under two treatments: disturbed cells are not among them
    assert (summary.episodes == 3).all()


def test_the_report_draws_and_says_it(table):
    rows = ptq_study.robustness(table)
    figure = figures.kept_panels(rows)
    assert [ax.get_title() for ax in figure.axes] == ["ppo/CartPole-v1", "ppo/Pendulum-v1"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["none", "observation_noise=0.2", "action_delay=3"]
    plt.close(figure)
    said = sentences.robustness_verdict(rows)
    assert said.count("\n- **") == 2
    assert "- **action_delay=3**, 2 agents: fp32 keeps" in said
    nothing = ptq_study.robustness(table[table.disturbance == "none"])
    assert sentences.robustness_verdict(nothing) == "No disturbance was measured."
    plt.close(figures.kept_panels(nothing))


def episodes(precision: str, disturbance: str, returns: list[float], error: str = "") -> pd.DataFrame:
    return pd.DataFrame({"seed": range(len(returns)), "episode_return": returns}).assign(
        agent="a", env_id="E-v0", engine="simulated", precision=precision, observation="none", error=error,
        quantizer="none" if precision == "fp32" else "paper", disturbance=disturbance,
    )  # fmt: skip


def test_kept_is_paired_under_the_same_disturbance_by_hand():
    rows = ptq_study.robustness(
        pd.concat(
            [
                episodes("fp32", "none", [-100.0, -100.0, -100.0]),
                episodes("int8", "none", [-100.0, -100.0, -100.0]),
                episodes("fp32", "action_delay=1", [-200.0, -300.0, -400.0]),
                episodes("int8", "action_delay=1", [-260.0, -360.0, -460.0]),
                episodes("fp32", "friction=2", [np.nan], "slips"),
                episodes("int8", "friction=2", [np.nan], "slips"),
            ]
        )
    )
    late = rows[(rows.disturbance == "action_delay=1") & (rows.precision == "int8")].iloc[0]
    # 60 less in each episode of 300 on average: a fifth is lost, and the paired interval has no width.
    assert (late.kept, late.kept_low, late.kept_high) == pytest.approx((0.8, 0.8, 0.8))
    assert (late.mean_return, late.paired_difference, late.differs) == (-360, -60, True)
    assert rows[rows.error != ""][["disturbance", "precision", "error"]].values.tolist() == [
        ["friction=2", "none", "slips"]
    ]
    # fp32 falls from -100 to -300: it keeps 1 - 200/100.
    assert "fp32 keeps -100.0% of its undisturbed return; of fp32's under the same keep int8 80.0% (1 of 1 differ)" in (
        sentences.robustness_verdict(rows)
    )


def test_noise_of_agents_that_observe_no_numbers_or_have_masks_is_refused():
    def refusal(name: str, space: spaces.Space, **options: Any) -> str:
        agent = Agent("PPO", "E-v0", "a", None, spaces.Box(-1, 1, (3,)), flat=space, **options)
        with pytest.raises(ValueError, match=name.partition("=")[0]) as caught:
            cells.disturbed_environments(agent, disturbed.parse(name), np.ones(3))
        return str(caught.value)

    numbers = spaces.Dict({"x": spaces.Box(-1, 1, (3,))})
    assert "not numbers" in refusal("observation_noise=0.1", spaces.MultiBinary(3))
    assert "not numbers" in refusal("observation_noise=0.1", spaces.Dict({"x": spaces.Discrete(3)}))
    assert "masked" in refusal("action_noise=0.1", numbers, masked=True)
    assert "masked" in refusal("action_delay=1", numbers, masked=True)
    agent = Agent("PPO", "CartPole-v1", "a", None, spaces.Box(-1, 1, (4,)))
    env = cells.disturbed_environments(agent, disturbed.parse("observation_noise=0.1"), np.ones(4))()
    assert isinstance(env, disturbed.ObservationNoise)
    assert isinstance(env.unwrapped, gymnasium.Env)


@pytest.mark.parametrize(
    ("given", "message"),
    [(["friction"], "write <kind>=<level>"), (["friction=2", "friction=2.0"], "stands there twice")],
)
def test_disturbances_are_checked_where_they_enter(given, message):
    with pytest.raises(ValueError, match=message):
        study.Config(disturbances=given)
