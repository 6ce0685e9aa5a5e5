"""Every documented value of every parameter of every study, pairwise, at the smallest size: each notebook's cells run.

One by one would miss what two values do together, all combinations would take years; see `documented_values`.
"""

from __future__ import annotations

import importlib
import json
import traceback
import warnings
from typing import Any

import pytest
from documented_values import documented, refusal, rows_of

from quarl_lib.inference import PRECISIONS
from quarl_lib.results import PROJECT, RUN_DIR_VARIABLE
from quarl_lib.suite import catalog
from quarl_lib.suite.catalog import Study

STUDIES = catalog.find_studies(PROJECT)
# Sizes: the smallest at which a study still measures something, and what would train for hours.
TINY: dict[str, dict[str, Any]] = {
    "ptq_study": dict(env_ids=["CartPole-v1"], algorithms=["PPO"], precisions=["fp32", "int8"], quantizers=["paper"],
                      engines=["simulated"], episodes=2, calibration_steps=50, kl_states=50, workers=1),
    "qat_bit_sweep": dict(agents=["PPO/CartPole-v1/256"], seeds=[0], bits=["8"], episodes=2, calibration_steps=50,
                          workers=1),
    "action_distributions": dict(env_ids=["CartPole-v1"], algorithms=["PPO"], precisions=["int8"], steps=100,
                                 calibration_steps=50, workers=1),
    "actorq_training": dict(tasks=["gym:CartPole-v0"], thresholds=[15.0], actor_steps=[400], update_periods=[20],
                            precisions=["fp32", "int8"], min_replay=100, samples_per_insert=2.0, batch_size=16,
                            policy_hidden=[16, 16], critic_hidden=[16], publish_period=2, eval_period=200,
                            eval_episodes=1, checkpoint_every=20, throughput_tasks=["gym:CartPole-v0"],
                            throughput_precisions=["fp32", "int8"], throughput_update_periods=[10],
                            throughput_hidden=[16], throughput_steps=20, throughput_rounds=1,
                            peers=["sb3_dqn"], peer_times=0.1, peer_threads=1),
    "communication_ablation": dict(hidden=[16], task="gym:CartPole-v0", pairs=["fp32/fp32"], update_periods=[10],
                                   transports=["shared_memory"], steps=20, rounds=1, curve_task="gym:CartPole-v0",
                                   curve_periods=[20], curve_actor_steps=300, policy_hidden=[16], critic_hidden=[16],
                                   batch_size=16, samples_per_insert=2.0, min_replay=100, eval_period=200,
                                   eval_episodes=1),
    "runtime_breakdown": dict(hidden=[16], task="gym:CartPole-v0", precisions=["fp32", "int8"], update_periods=[10],
                              designs=["packed"], steps=20, rounds=1, system_precisions=["fp32"],
                              system_actor_steps=300, system_policy_hidden=[16], system_critic_hidden=[16],
                              batch_size=16, samples_per_insert=2.0, min_replay=100, system_update_period=20),
    "training_at_scale": dict(tasks=["gym:CartPole-v0"], thresholds=[15.0], actor_steps=[600], update_periods=[50],
                              precisions=["fp32", "int8"], learner_ms=[2.0], min_replay=300, policy_hidden=[8],
                              critic_hidden=[8], border_actors=[2], border_learner_ms=[2.0], border_steps=1024,
                              validation_steps=1000, workers=1),
    "actor_scaling": dict(task="gym:CartPole-v0", actors=[1], precisions=["fp32"], actor_steps=300,
                          policy_hidden=[16], critic_hidden=[16], batch_size=16, update_period=20,
                          contention_rounds=1),
    "inference_engines": dict(policies=["4-64x64-2"], backends=["native", "torch"], batch_sizes=[1], rounds=1,
                              calls_per_block=2, block_ms=1.0, cold_megabytes=1.0, update_repeats=1,
                              error_observations=8),
    "quantized_rollouts": dict(recipes=["PPO/CartPole-v1/256/1/8-8"], precisions=["plain", "int8"], seeds=[0],
                               corrections=["behaviour"], workers=1),
}  # fmt: skip
EACH = ("tasks", "disturbances")  # of an open set: the cell's own, one at a time
# Names out of an open set, and what trains by recipe for hours: tested elsewhere.
NOT_VARIED = {"task", "curve_task", "throughput_tasks", "agents", "recipes", "policies", "retrain"}


def config_of(study: Study) -> Any:
    return importlib.import_module(f"quarl_lib.studies.{study.name}").Config


def base_and_values(study: Study) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return a study's smallest values, and every parameter's documented ones."""
    config_class = config_of(study)
    base = {**study.preset("smoke"), **TINY[study.name]}
    assert not refusal(config_class, base)
    values = documented(study, config_class, base, EACH)
    return base, {name: found for name, found in values.items() if name not in NOT_VARIED}


def run_cells(study: Study, values: dict[str, Any], directory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a notebook's cells in this process, its parameters cell replaced."""
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(directory))
    cells = [cell for cell in json.loads(study.notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    namespace: dict[str, Any] = dict(values)
    for cell in cells:
        if "parameters" not in cell["metadata"].get("tags", []):
            exec(compile("".join(cell["source"]), study.notebook.name, "exec"), namespace)
    assert (directory / "finished.json").exists()


def test_documented_values_are_found_where_they_stand():
    _, values = base_and_values(STUDIES["actorq_training"])
    assert values["transport"] == ["shared_memory", "reverb"]
    assert values["algorithm"] == ["auto", "dqn", "d4pg"]
    assert values["tasks"] == [["gym:CartPole-v0"], ["dm_control:cartpole:balance"]]
    assert values["thresholds"] == [[15.0], [0.0]]
    assert values["throughput_rounds"] == [1, 0]
    assert values["stop_at_threshold"] == [True, False]
    assert values["throughput_authors_precision"] == ["int8", "fp32", "fp16"]
    assert values["precisions"][:2] == [["fp32", "int8"], ["fp32"]]
    assert set(values["communication_precision"]) == {"same", *PRECISIONS}
    assert values["batch_size"] == [16]  # a size
    _, values = base_and_values(STUDIES["ptq_study"])
    assert ["mse_clip"] in values["quantizers"]
    assert ["per_feature"] in values["observation_quantization"]


def test_rows_cover_every_pair_that_the_config_accepts():
    class Config:
        def __init__(self, **values: int) -> None:
            if values["a"] == 2 and values["b"] == 1:
                raise ValueError("a=2: not beside b=1")

    values = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1], "d": [0, 1], "e": [7]}
    rows = rows_of(Config, dict(a=0, b=0, c=0, d=0, e=7), values)
    for one, other in (("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")):
        met = {(row[one], row[other]) for row in rows}
        assert len(met) == len(values[one]) * len(values[other]) - ((one, other) == ("a", "b"))
    assert len(rows) <= 11  # nine are needed


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_every_two_documented_values_run_together(study, tmp_path, monkeypatch):
    base, values = base_and_values(study)
    rows, failed = rows_of(config_of(study), base, values), {}
    for number, row in enumerate(rows):
        directory = tmp_path / str(number)
        directory.mkdir()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run_cells(study, row, directory, monkeypatch)
        except Exception:
            failed[str({name: row[name] for name in values if len(values[name]) > 1})] = traceback.format_exc()
    assert not failed, "\n\n".join(f"{row}\n{error}" for row, error in failed.items())
