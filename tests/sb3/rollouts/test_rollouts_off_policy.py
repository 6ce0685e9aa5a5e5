"""DQN, TD3 and SAC with an engine in their rollouts: exploration stays the library's, evaluation stays fp32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rollout_models import env_of, model_of

from quarl_lib.sb3.rollouts import quantized_rollouts

STEPS = 48


def actions_of(model):
    buffer = model.replay_buffer
    return buffer.actions[: buffer.pos].copy(), buffer.observations[: buffer.pos].copy()


@pytest.mark.parametrize(
    ("algorithm", "env_id", "n_envs"), [("DQN", "CartPole-v1", 1), ("TD3", "Pendulum-v1", 1), ("SAC", "Pendulum-v1", 2)]
)
def test_with_fp32_and_the_same_seed_the_same_actions_are_stored(algorithm, env_id, n_envs):
    plain = model_of(algorithm, env_of(env_id, n_envs))
    plain.learn(STEPS)
    model = model_of(algorithm, env_of(env_id, n_envs))
    with quantized_rollouts(model, "fp32") as handle:
        model.learn(STEPS)
    for one, two in zip(actions_of(plain), actions_of(model), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-2, atol=1e-3)
    assert handle.report().steps > 10
    assert "predict" not in vars(model.policy)


@pytest.mark.parametrize("algorithm", ["TD3", "SAC"])
def test_engine_acts_in_rollouts_only(algorithm):
    model = model_of(algorithm, env_of("Pendulum-v1"), learning_rate=1e-2)
    elsewhere = np.array([[0.3, -0.4, 0.5]], np.float32)
    seen = []

    def look(arguments, _):
        seen.append(model.predict(elsewhere, deterministic=True)[0].item())
        return True

    with quantized_rollouts(model, "int2") as handle:
        model.learn(20, callback=look)
        inside, acted = model.predict(elsewhere, deterministic=True)[0], handle.actor(elsewhere)[:, :1]
        steps = handle.steps
        model.predict(model._last_obs)
        assert handle.steps == steps
    assert len(set(seen)) > 1
    np.testing.assert_array_equal(model.predict(elsewhere, deterministic=True)[0], inside)
    acted = np.tanh(acted) if algorithm == "SAC" else acted
    assert np.abs(2 * acted - inside).max() > 1e-4


def test_update_period_counts_environment_steps():
    updates = {}
    for period in (1, 10):
        model = model_of("TD3", env_of("Pendulum-v1"))
        with quantized_rollouts(model, "int8", update_period=period) as handle:
            model.learn(STEPS)
        updates[period] = handle.report().updates
        assert handle.report().age_steps <= period + 1
    assert updates[10] == 1 + 4  # on entering, then at steps 12, 22, 32 and 42: the first actor update comes at 12
    assert updates[1] == pytest.approx(1 + (STEPS - 11) // 2, abs=1)  # the actor learns at every second step


def test_weights_written_by_others_reach_the_engine():
    model = model_of("DQN", env_of("CartPole-v1"), exploration_initial_eps=0.0)
    with quantized_rollouts(model, "fp32") as handle:
        assert not handle.actor.changed()
        state = {name: 2 * value for name, value in model.policy.state_dict().items()}
        model.policy.load_state_dict(state)
        assert handle.actor.changed()
        handle.actor.refresh()
        x = np.ones((1, 4), np.float32)
        expected = model.q_net(model.policy.obs_to_tensor(x)[0]).detach().numpy()
        np.testing.assert_allclose(handle.actor(x), expected, rtol=1e-4, atol=1e-5)
        weight = model.q_net.q_net[0].weight
        weight.data = weight.data.clone() * 3
        assert handle.actor.changed()
        handle.actor.refresh()
        expected = model.q_net(model.policy.obs_to_tensor(x)[0]).detach().numpy()
        np.testing.assert_allclose(handle.actor(x), expected, rtol=1e-4, atol=1e-5)


def test_heads_of_sac_begin_as_zeros_whatever_lies_in_their_memory(monkeypatch):
    """Memory that was never written may hold NaN, which no engine takes."""
    from quarl_lib.sb3.rollouts import actor

    def dirty(layer_class, *sizes):
        layer = layer_class(*sizes)
        torch.nn.init.constant_(layer.weight, float("nan"))
        return layer

    monkeypatch.setattr(actor, "skip_init", dirty)
    model = model_of("SAC", env_of("Pendulum-v1"))
    engine = actor.EngineActor(model, "fp32")
    observation = model.observation_space.sample()[None]
    mean = model.policy.actor(torch.from_numpy(observation), deterministic=True).detach().numpy()
    np.testing.assert_allclose(np.tanh(engine(observation)[:, :1]), mean, atol=1e-5)
