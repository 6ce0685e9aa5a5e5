"""A2C and PPO with an engine in their rollouts: with fp32 the very same training, with int8 the policy that acted."""

from __future__ import annotations

from contextlib import nullcontext

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rollout_models import STEPS, Seen, env_of, model_of
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from quarl_lib.inference import Head, pack
from quarl_lib.inference.backends.reference import NumpyEngine
from quarl_lib.inference.modules import spec_from_module
from quarl_lib.sb3.rollouts import QuantizedRollouts, quantized_rollouts

CASES = [
    ("PPO", "CartPole-v1", 1, False),
    ("PPO", "Pendulum-v1", 3, True),
    ("A2C", "CartPole-v1", 2, True),
    ("A2C", "Pendulum-v1", 1, False),
]


@pytest.mark.parametrize(("algorithm", "env_id", "n_envs", "normalize"), CASES)
def test_with_fp32_and_the_same_seed_every_rollout_equals_the_plain_one(algorithm, env_id, n_envs, normalize):
    plain, engine = Seen(), Seen()
    model = model_of(algorithm, env_of(env_id, n_envs, normalize))
    model.learn(3 * STEPS * n_envs, callback=plain)
    other = model_of(algorithm, env_of(env_id, n_envs, normalize))
    with quantized_rollouts(other, "fp32"):
        other.learn(3 * STEPS * n_envs, callback=engine)
    assert len(plain.rollouts) == len(engine.rollouts) == 3
    assert engine.truncated == plain.truncated >= 3  # so that rewards hold values of terminal observations
    for one, two in zip(plain.rollouts, engine.rollouts, strict=True):
        for name, values in one.items():
            np.testing.assert_allclose(two[name], values, rtol=1e-3, atol=2e-4, err_msg=name)
    for one, two in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("algorithm", "env_id", "n_envs"), [("PPO", "CartPole-v1", 2), ("A2C", "Pendulum-v1", 1)])
def test_log_probabilities_are_those_of_the_quantized_policy(algorithm, env_id, n_envs):
    """Computed anew by the numpy engine, from the weights as they were in the rollout."""
    seen = []

    def look(model):
        policy, buffer = model.policy, model.rollout_buffer
        spec, weights = spec_from_module(
            nn.Sequential(nn.Flatten(), policy.mlp_extractor.policy_net, policy.action_net), Head("none")
        )
        engine = NumpyEngine(spec, "int4")
        engine.load(pack(spec, weights, "int4"))
        observations = torch.from_numpy(buffer.observations.reshape(-1, *buffer.obs_shape))
        outputs = torch.from_numpy(engine.outputs(observations.numpy()))
        actions = torch.from_numpy(buffer.actions.reshape(-1, buffer.action_dim))
        if env_id == "CartPole-v1":
            expected = torch.distributions.Categorical(logits=outputs).log_prob(actions[:, 0])
            actions = actions.long().flatten()
        else:
            expected = torch.distributions.Normal(outputs, policy.log_std.exp()).log_prob(actions).sum(1)
        fp32 = policy.evaluate_actions(observations, actions)
        seen.append((buffer.log_probs.reshape(-1).copy(), expected.detach().numpy(), fp32[1].detach().numpy()))
        np.testing.assert_allclose(buffer.values.reshape(-1), fp32[0].detach().numpy()[:, 0], rtol=1e-4, atol=1e-5)

    model = model_of(algorithm, env_of(env_id, n_envs), learning_rate=0.01)
    with quantized_rollouts(model, "int4"):
        model.learn(3 * STEPS * n_envs, callback=Seen(look))
    assert len(seen) == 3
    for recorded, expected, _ in seen:
        np.testing.assert_allclose(recorded, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(seen[-1][1] - seen[-1][2]).max() > 1e-3  # which is another policy than fp32's


@pytest.mark.parametrize("correction", ["none", "truncated"])
def test_corrections_record_fp32_and_weight_advantages(correction):
    acted, corrected = Seen(), Seen()
    checked = []

    def look(model):
        buffer = model.rollout_buffer
        observations = torch.from_numpy(buffer.observations.reshape(-1, 3))
        _, fp32, _ = model.policy.evaluate_actions(observations, torch.from_numpy(buffer.actions.reshape(-1, 1)))
        checked.append(np.abs(fp32.detach().numpy() - buffer.log_probs.reshape(-1)).max())

    for seen, how in ((acted, "behaviour"), (corrected, correction)):
        seen._look = look if how != "behaviour" else seen._look
        kwargs = {"net_arch": [16, 16], "log_std_init": -3.0, "ortho_init": False}
        model = model_of("A2C", env_of("Pendulum-v1"), policy_kwargs=kwargs)
        with quantized_rollouts(model, "int2", correction=how):
            model.learn(STEPS, callback=seen)
    (first,), (second,) = acted.rollouts, corrected.rollouts
    assert checked[0] < 1e-4
    np.testing.assert_allclose(second["actions"], first["actions"])
    ratio = np.exp(second["log_probs"] - first["log_probs"])
    assert ratio.max() > 2
    weight = np.minimum(2, ratio) if correction == "truncated" else np.ones_like(ratio)
    np.testing.assert_allclose(second["advantages"], weight * first["advantages"], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(second["returns"], first["returns"], rtol=1e-4, atol=1e-4)


def test_update_period_counts_rollouts_and_age_counts_steps():
    ages = {}
    for period in (1, 2):
        model = model_of("A2C", env_of("CartPole-v1", 2))
        with quantized_rollouts(model, "int8", update_period=period) as handle:
            model.learn(4 * STEPS * 2)
        report = handle.report()
        assert report.updates == (4 if period == 1 else 2)  # the first on entering, later ones where weights changed
        assert report.steps == 4 * STEPS * 2
        ages[period] = report.age_steps
    assert ages == {1: pytest.approx(STEPS - 1), 2: pytest.approx(2 * STEPS - 1)}


def test_the_callback_trains_alike_and_other_callbacks_see_fp32():
    trained = []
    for as_callback in (False, True):
        model = model_of("PPO", env_of("CartPole-v1"))
        values: list[float] = []
        callback = QuantizedRollouts("int8")

        def look(model, values=values):
            observation = torch.zeros(1, 4)
            values.append(model.policy(observation)[1].item() - model.policy.predict_values(observation).item())

        if as_callback:
            model.learn(2 * STEPS, callback=[callback, Seen(look)], progress_bar=False)
            model.learn(STEPS, callback=[callback, Seen(look)], reset_num_timesteps=False)
            assert callback.handle.report().steps == STEPS
        else:
            with quantized_rollouts(model, "int8"):
                model.learn(2 * STEPS, callback=Seen(look))
                model.learn(STEPS, callback=Seen(look), reset_num_timesteps=False)
        assert values == pytest.approx([0, 0, 0], abs=1e-6)
        trained.append(model)
        assert "forward" not in vars(model.policy)
    for one, two in zip(*(model.policy.parameters() for model in trained), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


class Frames(gymnasium.Env):
    """Images that depend on the step only."""

    observation_space = spaces.Box(0, 255, (1, 40, 40), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.step(0)[0], {}

    def step(self, action):
        self.t += 1
        frame = np.random.default_rng(self.t).integers(0, 256, (1, 40, 40)).astype(np.uint8)
        return frame, float(action), self.t >= 9, False, {}


def test_images_go_through_convolutions_to_the_same_rollout():
    rollouts = []
    for precision in (None, "fp32"):
        seen, env = Seen(), DummyVecEnv([lambda: Monitor(Frames())])
        model = PPO("CnnPolicy", env, n_steps=12, batch_size=6, n_epochs=1, seed=0, device="cpu")
        with quantized_rollouts(model, precision) if precision else nullcontext():
            model.learn(12, callback=seen)
        rollouts += seen.rollouts
    for name, values in rollouts[0].items():
        np.testing.assert_allclose(rollouts[1][name], values, rtol=1e-3, atol=1e-4, err_msg=name)
