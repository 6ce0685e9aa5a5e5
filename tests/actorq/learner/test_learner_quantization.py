"""A learner on the actors' grid: its policy is the one that the engine plays, and its fp32 weights learn through it."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from quarl_lib.actorq.actor.policy import policy_spec, policy_weights
from quarl_lib.actorq.config import LEARNER_QUANTIZATIONS, Config
from quarl_lib.actorq.learner import acting, d4pg, dqn
from quarl_lib.actorq.replay.transitions import Batch
from quarl_lib.envs import control, specs
from quarl_lib.inference import extension, make_engine, pack
from quarl_lib.quantization.qat import ENGINE_BITS

ALGORITHMS = {"d4pg": d4pg, "dqn": dqn}
TASKS = {"d4pg": "dm_control:cartpole:balance", "dqn": "gym:CartPole-v0"}


def learner(algorithm, precision, quantization="engine", policy_hidden=(32, 24), critic_hidden=(32, 32)):
    config = Config(
        task=TASKS[algorithm], algorithm=algorithm, precision=precision, policy_hidden=policy_hidden,
        critic_hidden=critic_hidden, learner_quantization=quantization, policy_learning_rate=1e-3,
        critic_learning_rate=1e-3,
    )  # fmt: skip
    spec = specs.make_environment_spec(control.make(config.task, 0))
    torch.manual_seed(0)
    return config, spec, ALGORITHMS[algorithm].init(config, spec, torch.device("cpu"))


def batch(spec, algorithm, size=64):
    rng = np.random.default_rng(1)
    shape = (size, spec.observations.shape[0])
    before, after = (torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for _ in range(2))
    actions = torch.from_numpy(
        rng.integers(2, size=size) if algorithm == "dqn" else rng.uniform(-1, 1, (size, 1)).astype(np.float32)
    )
    rewards = torch.from_numpy(rng.uniform(size=size).astype(np.float32))
    return Batch(before, actions, rewards, torch.ones(size), after)


@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_learned_is_what_the_engine_plays(algorithm, precision):
    config, spec, state = learner(algorithm, precision)
    for _ in range(5):
        ALGORITHMS[algorithm].update(config, state, batch(spec, algorithm))
    policy = policy_spec(config, spec)
    engine = make_engine(policy, precision, "numpy")
    engine.load(pack(policy, policy_weights(state.policy), precision), copy=True)
    observations = batch(spec, algorithm).o_tm1
    with torch.no_grad():
        learned = state.acting_policy()(observations)
    played = np.stack([np.array(engine(one)) for one in observations.numpy()])
    if algorithm == "dqn":
        assert (played == learned.argmax(1).numpy()).all()
    else:
        np.testing.assert_allclose(played, learned.numpy(), atol=2e-6)
    assert len(torch.unique(state.acting_policy()[2].weight[0])) <= 2 ** ENGINE_BITS[precision][0]


@pytest.mark.parametrize("precision", ["int8", "int4", "int3", "int2"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_kernels_round_as_torch_does(algorithm, precision, monkeypatch):
    _, spec, state = learner(algorithm, precision)
    monkeypatch.setattr(acting, "native", lambda: None)
    _, _, in_torch = learner(algorithm, precision)
    o = batch(spec, algorithm).o_t
    gradients = []
    for one in (state, in_torch):
        policy = one.acting_policy()
        gradients.append(torch.autograd.grad(policy(o).square().sum(), list(policy.parameters())))
    for own, others in zip(*gradients, strict=True):
        torch.testing.assert_close(own, others, rtol=1e-4, atol=1e-5)  # the mean rounding error is summed otherwise
    for own, others in zip(state.acting_policy().parameters(), in_torch.acting_policy().parameters(), strict=True):
        torch.testing.assert_close(own, others, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.skipif(extension.native() is None, reason=extension.missing or "built")
@pytest.mark.parametrize("size", [64, 256])
@pytest.mark.parametrize("hidden", [(64, 64), (128, 128, 128)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_on_the_grid_takes_little_more(algorithm, hidden, size):
    learners = [learner(algorithm, "int4", quantization, hidden, hidden) for quantization in ("none", "engine")]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ratios = []
    try:
        for round_number in range(25):
            seconds = [0.0, 0.0]
            for side in ((0, 1), (1, 0))[round_number % 2]:  # by turns: the machine's pace changes
                config, spec, state = learners[side]
                one, begin = batch(spec, algorithm, size), time.thread_time()
                for _ in range(10):
                    ALGORITHMS[algorithm].update(config, state, one)
                seconds[side] = time.thread_time() - begin
            ratios.append(seconds[1] / seconds[0])
    finally:
        torch.set_num_threads(threads)
    assert np.median(ratios[3:]) <= 1.35


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_weights_learn_through_the_grid(algorithm):
    config, spec, state = learner(algorithm, "int2")
    before = [parameter.detach().clone() for parameter in state.policy.parameters()]
    one = batch(spec, algorithm)
    losses = [float(ALGORITHMS[algorithm].update(config, state, one)["critic_loss"]) for _ in range(60)]
    assert np.mean(losses[-5:]) < losses[0]
    moved = [bool((parameter != was).any()) for parameter, was in zip(state.policy.parameters(), before, strict=True)]
    assert all(moved)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_numbers_are_drawn_with_and_without(algorithm):
    _, _, plain = learner(algorithm, "int4", "none")
    _, _, quantized = learner(algorithm, "int4")
    for one, other in zip(plain.policy.parameters(), quantized.policy.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_checkpoint_takes_both_policies_over(algorithm):
    config, spec, state = learner(algorithm, "int4")
    ALGORITHMS[algorithm].update(config, state, batch(spec, algorithm))
    _, _, other = learner(algorithm, "int4")
    other.restore(state.save())
    o = batch(spec, algorithm).o_t
    for part in ("online", "target"):
        assert torch.equal(getattr(state, part)["policy"](o), getattr(other, part)["policy"](o))


@pytest.mark.parametrize("precision", sorted(ENGINE_BITS))
def test_every_simulated_engine_can_be_learned_on(precision):
    assert LEARNER_QUANTIZATIONS == ("none", "engine")
    assert Config(precision=precision, learner_quantization="engine").learner_quantization == "engine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "fp32"}, "no grid to learn on"),
        ({"precision": "int4g128"}, "no grid to learn on"),
        ({"precision": "int4", "communication_precision": "int8"}, "round twice"),
    ],
)
def test_what_has_no_grid_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Config(**options, learner_quantization="engine")
