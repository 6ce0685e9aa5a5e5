"""Every task of the paper's Table 3 through the whole system, at the paper's network sizes."""

from __future__ import annotations

import numpy as np
import pytest
from paper_settings import paper_options

from quarl_lib.studies.common.paper_tables import PAPER_TASKS

pytestmark = pytest.mark.slow
STEPS = 500


@pytest.mark.parametrize("row", PAPER_TASKS, ids=lambda row: row.task)
def test_500_actor_steps_of_each_task(row, tmp_path):
    from quarl_lib.actorq.launch import local

    config = paper_options(
        row.task, n_actors=1, actor_steps=STEPS, min_replay=100, update_period=100,
        eval_period=STEPS, eval_episodes=1, publish_period=5, max_seconds=240.0,
    )  # fmt: skip
    tables = local.run(config, tmp_path)
    timing = tables["timing"].groupby(["part", "stage"])[["seconds", "count"]].sum()
    assert timing.loc[("actor", "env_step"), "count"] >= STEPS
    assert timing.loc[("actor", "load_weights"), "count"] >= 1
    learner = tables["learner"].iloc[-1]
    assert learner.learner_steps >= 5
    assert np.isfinite(learner.critic_loss)
    # The ratio held: what was sampled is what was written, times 16, within the buffer.
    ahead = (learner.inserted - config.min_replay) * config.samples_per_insert - learner.sampled
    assert abs(ahead) <= config.replay_error_buffer
    assert np.isfinite(tables["evaluations"].episode_return).all()
