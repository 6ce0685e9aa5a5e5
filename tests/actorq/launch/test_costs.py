"""Tables of costs: what is drawn, what the authors' recipe pays at every pull, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import yaml

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import costs
from quarl_lib.actorq.launch.costs import CostTable

STAGES = {"select_action": 70, "observe": [4, 6], "pull": 2, "deserialize": 5, "load_weights": 3}
TABLE: dict[str, Any] = {
    "machine": "a machine", "source": dict.fromkeys(costs.SECTIONS, "assumed"), "policy": "any",
    "env_step": {"dm_control:cartpole:balance": 90},
    "actor": {"packed": {"int8": STAGES}, "authors": {"int8": {**STAGES, "select_action": 700}}},
    "learner": {"sample": 300, "learner_step": 2000, "message": {
        "packed": {"int8": {"quantize": 1000, "broadcast": 50}}, "authors": {"int8": {"quantize": 9, "broadcast": 8}}}},
}  # fmt: skip
CONFIG = Config(precision="int8")
RNG = np.random.default_rng(0)


def test_values_are_microseconds_and_lists_are_drawn_from():
    of = CostTable(**TABLE).of(CONFIG)
    assert of["env_step"](RNG, 0) == pytest.approx(90e-6)
    assert {round(1e6 * of["observe"](RNG, 0)) for _ in range(50)} == {4, 6}
    assert of["learner_step"](RNG, 0) == pytest.approx(2000e-6)
    assumed = CostTable(**TABLE).of(CONFIG, learner_ms=0.5)
    assert (assumed["learner_step"](RNG, 0), assumed["sample"](RNG, 0)) == (pytest.approx(0.5e-3), 0)
    assert assumed["quantize"](RNG, 0) == pytest.approx(1e-3)


def test_what_other_threads_take_is_nothing_unless_the_table_says_so():
    assert CostTable(**TABLE).of(CONFIG)["behind_observe"](RNG, 0) == 0
    actor = {"packed": {"int8": {**STAGES, "behind_observe": 40}}}
    of = CostTable(**{**TABLE, "actor": actor, "learner": {**TABLE["learner"], "behind_sample": 900}}).of(CONFIG)
    assert (of["behind_observe"](RNG, 0), of["behind_sample"](RNG, 0)) == (pytest.approx(40e-6), pytest.approx(900e-6))


def test_the_authors_recipe_pays_for_a_message_at_every_pull():
    of = CostTable(**TABLE).of(CONFIG, "authors")
    assert of["select_action"](RNG, 0) == pytest.approx(700e-6)
    assert of["pull"](RNG, 0) == pytest.approx((2 + 5 + 3) * 1e-6)
    assert of["load_weights"](RNG, 0) == 0


def test_a_network_adds_the_bytes_of_new_weights():
    of = CostTable(**TABLE, gigabytes_per_s=2.0).of(CONFIG)
    assert of["pull"](RNG, 0) == 2e-6
    assert of["pull"](RNG, 8_000_000) == pytest.approx(2e-6 + 4e-3)


@pytest.mark.parametrize(
    ("config", "design", "text"),
    [
        (CONFIG.replace(precision="fp32"), "packed", "no 'fp32' under actor, packed; it has int8"),
        (CONFIG.replace(task="dm_control:walker:stand"), "packed", "no 'dm_control:walker:stand' under env_step"),
        (CONFIG, "mine", "no 'mine' under actor; it has packed, authors"),
        (CONFIG.replace(communication_precision="fp32"), "packed", "no 'fp32' under learner, message, packed"),
    ],
)
def test_what_the_table_lacks_is_named(config, design, text):
    with pytest.raises(ValueError, match=text):
        CostTable(**TABLE).of(config, design)


def test_bad_tables_are_refused(tmp_path):
    with pytest.raises(ValueError, match="source of actor='guessed'"):
        CostTable(**{**TABLE, "source": {**TABLE["source"], "actor": "guessed"}})
    with pytest.raises(ValueError, match="says -1 for env_step"):
        CostTable(**{**TABLE, "env_step": {CONFIG.task: -1}}).of(CONFIG)
    with pytest.raises(ValueError, match="machine='nowhere'"):
        costs.load("nowhere")
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(TABLE))
    assert costs.load(path) == CostTable(**TABLE)
    path.write_text("- 1")
    with pytest.raises(ValueError, match="no table of costs"):
        costs.load(path)


@pytest.mark.parametrize("name", costs.shipped())
def test_shipped_tables_have_what_they_name(name):
    table = costs.load(name)
    assert set(table.source.values()) <= set(costs.SOURCES)
    for design, by_precision in table.actor.items():
        for precision in by_precision:
            of = table.of(CONFIG.replace(precision=precision), design)
            assert all(of[stage](RNG, 0) >= 0 for stage in of)
