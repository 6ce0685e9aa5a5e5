"""params/paper holds the paper's settings (arXiv 1910.01055, section 4, Tables 3 and 4)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml
from paper_settings import paper_options

from quarl_lib.results import PROJECT
from quarl_lib.studies.common.paper_tables import PAPER_TASKS

PAPER = Path(__file__).resolve().parents[4] / "shared" / "paper"
# Table 3: the task, its algorithm, actor steps, and the period at which actors pull.
TABLE_3 = {
    "dm_control:cartpole:balance": ("d4pg", 40_000, 1000),
    "dm_control:walker:stand": ("d4pg", 40_000, 1000),
    "dm_control:hopper:stand": ("d4pg", 100_000, 1000),
    "dm_control:reacher:hard": ("d4pg", 70_000, 1000),
    "dm_control:cheetah:run": ("d4pg", 200_000, 1000),
    "dm_control:finger:spin": ("d4pg", 200_000, 1000),
    "dm_control:humanoid:stand": ("d4pg", 500_000, 100),
    "dm_control:humanoid:walk": ("d4pg", 700_000, 100),
    "gym:CartPole-v0": ("dqn", 60_000, 1000),
    "gym:Acrobot-v1": ("dqn", 100_000, 1000),
    "gym:MountainCar-v0": ("dqn", 200_000, 100),
}
# Section 4: four actors, three layers of 2048 in the policy, three of 512 in the critic, sixteen samples an insert.
SYSTEM = {
    "n_actors": 4,
    "batch_size": 256,
    "samples_per_insert": 16.0,
    "n_step": 5,
    "sigma_max": 0.2,
    "policy_hidden": [2048] * 3,
    "critic_hidden": [512] * 3,
    "policy_learning_rate": 1e-4,
    "critic_learning_rate": 1e-4,
}


def given(study: str) -> dict:
    return yaml.safe_load((PROJECT / "params" / "paper" / f"{study}.yaml").read_text())


def test_the_file_has_table_3():
    values = given("actorq_training")
    per_task = zip(values["tasks"], values["actor_steps"], values["update_periods"], strict=True)
    assert {task: (steps, period) for task, steps, period in per_task} == {
        task: (steps, period) for task, (_, steps, period) in TABLE_3.items()
    }
    assert set(values["thresholds"]) == {0.0}  # the paper's: 95 % of the best fp32 return
    assert not values["stop_at_threshold"]
    assert len(values["seeds"]) >= 3


@pytest.mark.parametrize("task", TABLE_3)
def test_the_options_of_a_run_are_table_3s(task):
    options = paper_options(task)
    assert (options.algorithm, options.actor_steps, options.update_period) == TABLE_3[task]
    assert (options.policy_hidden, options.critic_hidden) == ((2048,) * 3, (512,) * 3)
    assert options.eval_episodes == 10


@pytest.mark.parametrize("study", ["actorq_training", "communication_ablation", "runtime_breakdown", "actor_scaling"])
def test_every_study_of_the_system_has_the_papers(study):
    values = given(study)
    own = {
        "actor_scaling": {"samples_per_insert", "n_actors"},  # it varies the actors, and lets the learner wait
    }.get(study, set())
    values |= {name.removeprefix("system_"): value for name, value in values.items() if name.startswith("system_")}
    assert {name: values[name] for name in SYSTEM if name in values and name not in own} == {
        name: value for name, value in SYSTEM.items() if name in values and name not in own
    }
    for prefix in ("curve_", "system_"):
        if f"{prefix}actor_steps" in values:
            task = values.get(f"{prefix}task", values["task"])
            assert values[f"{prefix}actor_steps"] == TABLE_3[task][1]


def test_tables_laid_beside_ours_agree_with_themselves_and_with_the_paper():
    assert {row.task: (row.algorithm, row.actor_steps, row.update_period) for row in PAPER_TASKS} == TABLE_3
    for row in PAPER_TASKS:
        assert row.fp32_seconds / row.int8_seconds == pytest.approx(row.speedup, abs=0.02)
    if not PAPER.exists():
        return
    table_3, table_4 = pd.read_csv(PAPER / "table3_tasks.csv"), pd.read_csv(PAPER / "table4_actorq.csv")
    steps = zip(table_3.actor_steps, table_3.model_pull_period_steps, strict=True)
    assert list(steps) == [(steps, period) for _, steps, period in TABLE_3.values()]
    measured = {tuple(row)[1:] for row in table_4.itertuples(index=False)}
    names = ("mean_return", "fp32_seconds", "int8_seconds", "speedup", "fp32_co2_kg", "int8_co2_kg", "co2_ratio")
    assert {tuple(getattr(row, name) for name in names) for row in PAPER_TASKS} == measured
