"""An actor that plays several copies at once: what it writes, counts and explores; the replay is a list."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quarl_lib.actorq.actor import exploration
from quarl_lib.actorq.actor import loop as actor
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import costs
from quarl_lib.actorq.learner.networks import initial_policy
from quarl_lib.actorq.link import Link, read
from quarl_lib.actorq.replay import local
from quarl_lib.actorq.replay.transitions import TransitionLayout
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast
from quarl_lib.envs import control, specs
from quarl_lib.inference.pack import pack, packed_size

CARTPOLE = Config(
    task="gym:CartPole-v0", algorithm="dqn", n_actors=1, envs_per_actor=4, actor_steps=200, policy_hidden=(16,),
    min_replay=10, samples_per_insert=0.0, replay="local", update_period=50,
)  # fmt: skip


def act(config: Config, directory) -> tuple[Link, np.ndarray]:
    environment_spec = specs.make_environment_spec(control.make(config.task, 0))
    spec, weights = initial_policy(config, 0)
    broadcast = SharedMemoryBroadcast(packed_size(spec, config.weights_precision), 1)
    broadcast.publisher().publish(pack(spec, weights, config.weights_precision, weights_version=1))
    link = Link(directory, 1, broadcast)
    link.replay = local.Memory(config, environment_spec, 1)
    actor.run(config, link, 0)
    return link, link.replay.rows()[: link.replay.counts()[2]]


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_an_actor_of_four_copies_writes_every_step_of_each(tmp_path, precision):
    link, rows = act(CARTPOLE.replace(precision=precision), tmp_path)
    assert 200 <= link.actor_steps() < 200 + 4 + actor.LOOK_EVERY
    layout = TransitionLayout(specs.make_environment_spec(control.make(CARTPOLE.task, 0)))
    transitions = layout.unpack(torch.from_numpy(rows.copy()))
    r_t, d_t = transitions.r_t.numpy(), transitions.d_t.numpy()
    episodes = read(tmp_path, "episodes")
    assert len(episodes) > 8
    assert (episodes.episode_return == episodes.episode_steps).all()
    # One transition ends with each step, and those held back at an episode's end with its last.
    held = np.minimum(episodes.episode_steps, CARTPOLE.n_step) - 1
    assert len(rows) == link.actor_steps() + held.sum()
    assert {round(float(one), 3) for one in r_t} <= {1.0, 1.99, 2.97, 3.94, 4.901}  # up to five rewards of 1
    assert {round(float(one), 6) for one in d_t} <= {0.0, *(round(0.99**k, 6) for k in range(CARTPOLE.n_step))}
    starts = rows[:4, :4]
    assert len(np.unique(starts, axis=0)) == 4  # each copy has a seed of its own


def test_copies_explore_as_so_many_actors_would():
    config = Config(n_actors=2, envs_per_actor=3, sigma_max=0.5)
    spec = specs.make_environment_spec(control.make(config.task, 0))
    sigmas = [
        exploration.make_exploration(config, spec, i, np.random.default_rng(0)).sigma.ravel()  # type: ignore[attr-defined]
        for i in range(2)
    ]
    np.testing.assert_allclose(np.concatenate(sigmas), np.linspace(0, 0.5, 6), rtol=1e-6)
    noisy = exploration.make_exploration(config, spec, 0, np.random.default_rng(0))(np.zeros((3, 1), np.float32))
    assert noisy.shape == (3, 1)
    assert noisy[0] == 0.0  # the first one does not explore
    assert noisy[1] != noisy[2]


def test_each_copy_has_its_share_of_random_actions():
    greedy = exploration.BatchedEpsilonGreedy([0.0, 0.5, 1.0], 4, np.random.default_rng(0))
    chosen = np.array([greedy(np.array([9, 9, 9])) for _ in range(2000)])
    assert (chosen[:, 0] == 9).all()
    assert 0.45 < (chosen[:, 1] == 9).mean() < 0.55
    counts = np.bincount(chosen[:, 2], minlength=4)
    assert len(counts) == 4
    assert counts.min() > 400


def test_writing_several_at_once_is_writing_each(tmp_path):
    spec = specs.make_environment_spec(control.make(CARTPOLE.task, 0))
    config = CARTPOLE.replace(max_replay=10, actor_steps=1000)
    memory = local.Memory(config, spec, 1)
    adder = local.LocalAdder(config, memory, spec, 0)
    rows = np.arange(23 * memory.width, dtype=np.float32).reshape(23, -1)
    for begin, end in ((0, 4), (4, 4), (4, 11), (11, 23)):
        adder.write(rows[begin:end])
    assert memory.counts()[2] == memory.counts()[1] == 23
    np.testing.assert_array_equal(memory.rows(), rows[[20, 21, 22, *range(13, 20)]])


def test_the_ratio_holds_back_the_part_that_is_too_much():
    class Full(Exception):
        pass

    def give_up() -> bool:
        raise Full

    spec = specs.make_environment_spec(control.make(CARTPOLE.task, 0))
    config = CARTPOLE.replace(samples_per_insert=8.0, min_replay=4, error_buffer=32.0, batch_size=8)
    memory = local.Memory(config, spec, 1)
    adder = local.LocalAdder(config, memory, spec, 0, give_up)
    with pytest.raises(Full):
        adder.write(np.zeros((50, memory.width), np.float32))
    assert memory.counts()[2] == 8  # 4 to begin with, and 32 samples ahead of the ratio


def test_what_copies_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"envs_per_actor=2.*structured"):
        Config(adder="acme", envs_per_actor=2)
    with pytest.raises(ValueError, match="envs_per_actor=0"):
        Config(envs_per_actor=0)
    with pytest.raises(ValueError, match=r"envs_per_actor=2.*one environment an actor"):
        costs.CostTable("a machine", {}, "a policy", {}, {}, {}).of(Config(envs_per_actor=2))
