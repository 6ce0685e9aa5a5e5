"""Acme's interfaces are satisfied by our parts: each method of an Acme actor or learner is one call of ours."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from quarl_lib.actorq.actor.exploration import make_exploration
from quarl_lib.actorq.actor.loop import Puller
from quarl_lib.actorq.actor.policy import policy_spec, policy_weights
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.learner import d4pg
from quarl_lib.actorq.replay.local import LocalAdder, LocalReplay, Memory
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.actorq.weights.broadcast import SharedMemoryBroadcast
from quarl_lib.envs import control, specs
from quarl_lib.inference import make_engine
from quarl_lib.inference.pack import pack, packed_size

pytest.importorskip("acme")
from acme import core, environment_loop

CONFIG = Config(task="gym:Pendulum-v1", policy_hidden=(8,), critic_hidden=(8,), precision="int8", replay="local",
                batch_size=8, min_replay=20, max_replay=500, n_step=2, n_actors=1, samples_per_insert=0.0)  # fmt: skip


class Actor(core.Actor):
    def __init__(self, spec, adder, puller, engine) -> None:
        self._explore = make_exploration(CONFIG, spec, 0, np.random.default_rng(0))
        self._adder, self._puller, self._engine, self.pulled = adder, puller, engine, 0

    def select_action(self, observation):
        return self._explore(self._engine(observation))

    def observe_first(self, timestep):
        self._adder.add_first(timestep)

    def observe(self, action, next_timestep):
        self._adder.add(action, next_timestep)

    def update(self, wait: bool = False):
        self.pulled += self._puller(StageTimer())


class Learner(core.Learner):
    def __init__(self, spec, batches: Iterator[Batch]) -> None:
        torch.manual_seed(0)
        self.state, self._batches = d4pg.init(CONFIG, spec, torch.device("cpu")), batches

    def step(self):
        d4pg.update(CONFIG, self.state, next(self._batches))

    def get_variables(self, names):
        return [policy_weights(self.state.online[name]) for name in names]

    def save(self):
        return self.state.save()

    def restore(self, state):
        self.state.restore(state)


def test_acmes_loop_drives_our_actor_and_its_learner_ours():
    environment = control.make(CONFIG.task, seed=1)
    spec = specs.make_environment_spec(environment)
    policy, memory = policy_spec(CONFIG, spec), Memory(CONFIG, spec, num_writers=1)
    broadcast = SharedMemoryBroadcast(packed_size(policy, "int8"), num_readers=1)
    publisher, engine = broadcast.publisher(), make_engine(policy, "int8")
    learner = Learner(spec, LocalReplay(CONFIG, memory, spec).batches())

    def publish() -> None:
        publisher.publish(pack(policy, learner.get_variables(["policy"])[0], "int8"))

    publish()
    puller = Puller(policy, engine, broadcast.subscriber(0), "int8")
    puller(StageTimer())
    actor = Actor(spec, LocalAdder(CONFIG, memory, spec, writer=0), puller, engine)
    loop = environment_loop.EnvironmentLoop(environment, actor, should_update=True)
    loop.run(num_episodes=1)
    assert memory.inserted(memory.counts()) == 201, "200 steps with two-step returns, and a shorter one at the start"

    saved = copy.deepcopy(learner.save())
    before = learner.get_variables(["policy"])[0].layers[0].weight.copy()
    learner.run(num_steps=5)
    assert learner.state.learner_steps == 5
    assert np.abs(learner.get_variables(["policy"])[0].layers[0].weight - before).max() > 1e-6
    publish()
    loop.run(num_steps=1)
    assert actor.pulled == 1, "an update without news fetches nothing, one with news fetches once"
    learner.restore(saved)
    np.testing.assert_array_equal(learner.get_variables(["policy"])[0].layers[0].weight, before)


@pytest.mark.parametrize("method", ["add_first", "add", "reset"])
def test_adders_take_what_acmes_adders_take(method):
    from acme.adders import base

    from quarl_lib.actorq.replay import acme_adder, reverb

    assert issubclass(acme_adder.AcmeAdder, base.Adder)
    theirs = list(inspect.signature(getattr(base.Adder, method)).parameters)
    for adder in (LocalAdder, reverb.NStepAdder):
        assert list(inspect.signature(getattr(adder, method)).parameters) == theirs


def test_specs_are_acmes_field_for_field():
    from acme import specs as theirs

    spec = specs.make_environment_spec(control.make("gym:CartPole-v0", 0))
    assert spec == theirs.make_environment_spec(control.make("gym:CartPole-v0", 0))
    assert specs.EnvironmentSpec._fields == theirs.EnvironmentSpec._fields
    assert specs.DiscreteArray is theirs.DiscreteArray
