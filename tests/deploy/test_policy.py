"""QuantizedPolicy: acts as the agent, in Stable-Baselines3's shapes, from a file without torch, in another process."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from quarl_lib import QuantizedPolicy
from quarl_lib.deploy.source import find_agent, read_source
from quarl_lib.sb3 import SHIPPED_AGENTS

AGENTS = [str(path.relative_to(SHIPPED_AGENTS)) for path in sorted(SHIPPED_AGENTS.glob("*/*"))]


@pytest.mark.parametrize("name", AGENTS)
def test_at_fp32_it_acts_as_the_agent(name):
    agent = read_source(name).agent
    policy = QuantizedPolicy.from_sb3(name, "fp32")
    met = np.random.default_rng(0).normal(size=(200, *policy.observation_shape)).astype(np.float32)
    actions, state = policy.predict(met)
    assert state is None
    np.testing.assert_allclose(actions, agent.policy.act(agent.normalize(met)), atol=1e-5)
    one, _ = policy.predict(met[3])
    assert one.shape == actions.shape[1:]
    assert one.dtype == actions.dtype
    np.testing.assert_allclose(one, actions[3], atol=1e-6)


@pytest.fixture(scope="module")
def live():
    env = VecNormalize(make_vec_env("Pendulum-v1", 2, seed=0))
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    return model.learn(128), env


def test_a_live_model_is_taken_with_its_statistics_and_draws_as_it_does(live):
    model, env = live
    policy = QuantizedPolicy.from_sb3(model, "fp32", seed=1)
    assert policy.card["env_id"] == "Pendulum-v1"
    raw = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
    actions, _ = policy.predict(raw)
    assert (actions.shape, actions.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(actions, expected, atol=1e-5)
    drawn = np.concatenate([policy.predict(raw, deterministic=False)[0] - actions for _ in range(50)])
    inside = np.abs(actions) < 0.5
    assert drawn.std() == pytest.approx(float(model.policy.log_std.exp().detach()), rel=0.1) or not inside.all()
    policy.set_random_seed(7)
    first = policy.predict(raw, deterministic=False)[0]
    policy.set_random_seed(7)
    np.testing.assert_array_equal(first, policy.predict(raw, deterministic=False)[0])


def test_newer_weights_are_taken_and_others_refused(live):
    model, env = live
    policy = QuantizedPolicy.from_sb3(model, "fp32")
    raw = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    before = policy.predict(raw)[0]
    model.learn(64, reset_num_timesteps=False)
    policy.load_weights(model)
    after = policy.predict(raw)[0]
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(after, model.predict(env.normalize_obs(raw), deterministic=True)[0], atol=1e-5)
    with pytest.raises(ValueError, match="the new weights are those of"):
        policy.load_weights("ppo/CartPole-v1")
    np.testing.assert_array_equal(policy.predict(raw)[0], after)


def test_categorical_draws_follow_the_softmax():
    policy, agent = QuantizedPolicy.from_sb3("ppo/CartPole-v1", "fp32", seed=0), read_source("ppo/CartPole-v1").agent
    import torch

    state = np.full((4000, 4), 0.01, np.float32)
    share = policy.predict(state, deterministic=False)[0].mean()
    expected = float(agent.policy(torch.from_numpy(state[:1])).softmax(1)[0, 1])
    assert share == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize(
    ("name", "said"), [("dqn/CartPole-v1", "Q network"), ("ppo/Pendulum-v1", "depends on the state")]
)
def test_what_cannot_be_drawn_says_why(name, said):
    policy = QuantizedPolicy.from_sb3(name)
    with pytest.raises(ValueError, match=said):
        policy.predict(np.zeros(policy.observation_shape, np.float32), deterministic=False)


def test_a_file_is_read_without_torch(tmp_path):
    policy = QuantizedPolicy.from_sb3("ppo/CartPole-v1", "int4")
    policy.save(tmp_path / "policy.quarl")
    code = (
        "import sys; from quarl_lib.deploy.policy import QuantizedPolicy; import numpy as np\n"
        f"p = QuantizedPolicy.load({str(tmp_path / 'policy.quarl')!r})\n"
        "print('torch' in sys.modules, p.card['algorithm'], p.predict(np.ones((3, 4), np.float32))[0].tolist())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == f"False PPO {policy.predict(np.ones((3, 4), np.float32))[0].tolist()}"


def test_a_damaged_file_is_refused(tmp_path):
    data = QuantizedPolicy.from_sb3("ppo/CartPole-v1").to_bytes()
    for position in (60, 700, len(data) - 100):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(ValueError, match="damaged or cut short"):
            QuantizedPolicy.from_bytes(bytes(changed))
    with pytest.raises(ValueError, match="damaged or cut short"):
        QuantizedPolicy.from_bytes(data[:-64])
    with pytest.raises(ValueError, match="no policy of this library"):
        QuantizedPolicy.from_bytes(b"PK\3\4 a zip archive of some other kind, long enough to hold a header and more")


def predicted(policy, observation):
    return policy.predict(observation)[0], policy.engine(observation)


@pytest.mark.slow
def test_policies_and_engines_reach_spawned_processes():
    policy = QuantizedPolicy.from_sb3("ddpg/Pendulum-v1", "int8")
    observation = np.array([0.3, -0.2, 1.0], np.float32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(predicted, (policy, observation))
    np.testing.assert_array_equal(there[0], policy.predict(observation)[0])
    np.testing.assert_array_equal(there[1], policy.engine(observation))


@pytest.mark.parametrize("backend", ["native", "numpy", "torch", "onnxruntime"])
def test_every_engine_can_be_pickled(backend):
    policy = QuantizedPolicy.from_sb3("ppo/Pendulum-v1", "fp32", backend=backend)
    other = pickle.loads(pickle.dumps(policy.engine))
    observation = np.array([0.3, -0.2, 1.0], np.float32)
    np.testing.assert_array_equal(other(observation), policy.engine(observation))
    assert other.weights_version == policy.engine.weights_version


def test_agents_are_found_by_hub_names_and_by_what_the_archive_says(tmp_path):
    zipped = find_agent("ppo/CartPole-v1").path.read_bytes()
    hub = tmp_path / "ppo-CartPole-v1"
    hub.mkdir()
    (hub / "ppo-CartPole-v1.zip").write_bytes(zipped)
    (tmp_path / "best_model.zip").write_bytes(zipped)
    assert QuantizedPolicy.from_sb3(hub).card["env_id"] == "CartPole-v1"
    assert find_agent(tmp_path / "best_model.zip", "CartPole-v1").algorithm == "PPO"
    with pytest.raises(ValueError, match="give env_id"):
        find_agent(tmp_path / "best_model.zip")
    with pytest.raises(ValueError, match="does not exist"):
        find_agent("ppo/NoSuchEnv-v0")


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.zeros(3), "shape"),
        (np.full(4, np.nan), "nan"),
        ((np.zeros(4), {}), "inhomogeneous|observation"),
        (np.zeros((0, 4)), "shape"),
    ],
)
def test_odd_observations_are_refused(observation, said):
    with pytest.raises(ValueError, match=said):
        QuantizedPolicy.from_sb3("ppo/CartPole-v1").predict(observation)
