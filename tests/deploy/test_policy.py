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
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from quarl_lib import QuantizedPolicy
from quarl_lib.deploy.source import find_agent, read_source
from quarl_lib.quantization.qat import QATConfig
from quarl_lib.sb3 import SHIPPED_AGENTS
from quarl_lib.sb3.qat_export import plain_model
from quarl_lib.sb3.qat_policies import QATActorCriticPolicy, QuantDelay

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


def test_statistics_may_come_from_elsewhere(live, tmp_path):
    model, env = live
    bare = PPO("MlpPolicy", "Pendulum-v1", seed=0, device="cpu")
    bare.policy.load_state_dict(model.policy.state_dict())
    env.save(str(tmp_path / "vecnormalize.pkl"))
    raw = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    expected, _ = model.predict(env.normalize_obs(raw), deterministic=True)
    for statistics in (env, tmp_path / "vecnormalize.pkl"):
        policy = QuantizedPolicy.from_sb3(bare, "fp32", vec_normalize=statistics)
        np.testing.assert_allclose(policy.predict(raw)[0], expected, atol=1e-5)
    assert np.abs(QuantizedPolicy.from_sb3(bare, "fp32").predict(raw)[0] - expected).max() > 1e-3


@pytest.mark.parametrize(("name", "n_envs"), [("ppo/CartPole-v1", 1), ("ddpg/Pendulum-v1", 2)])
def test_stable_baselines3_evaluates_it_as_one_of_its_own(name, n_envs):
    policy = QuantizedPolicy.from_sb3(name, "int8")
    env = make_vec_env(policy.card["env_id"], n_envs, seed=3)
    returns, lengths = evaluate_policy(policy, env, n_eval_episodes=2, return_episode_rewards=True)  # type: ignore[arg-type]
    if name.startswith("ppo"):
        assert returns == [500, 500]
    else:
        assert lengths == [200, 200]
        assert np.min(returns) > -600


def test_a_model_trained_for_one_precision_runs_at_no_other():
    quantization = QATConfig.for_engine("int4")
    model = PPO(
        QATActorCriticPolicy, "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu",
        policy_kwargs={"quantization": quantization},
    )  # fmt: skip
    model.learn(32, callback=QuantDelay(0))
    policy = QuantizedPolicy.from_sb3(model, "int4")
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(x)[0], model.predict(x, deterministic=True)[0])
    policy.load_weights(model)
    for other in ("int8", "int2", "fp32"):
        with pytest.raises(ValueError, match=f"precision='{other}': live PPO model trained on the grid of int4"):
            QuantizedPolicy.from_sb3(model, other)
    with pytest.raises(ValueError, match="trained on the grid of int4"):
        QuantizedPolicy.from_sb3("ppo/CartPole-v1", "int8").load_weights(model)
    assert QuantizedPolicy.from_sb3(plain_model(model), "fp32", env_id="CartPole-v1").precision == "fp32"


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
    (tmp_path / "args.yml").write_text("algo: ppo\nenv: CartPole-v1\n")
    assert find_agent(tmp_path / "best_model.zip").env_id == "CartPole-v1"
    (hub / "last_model.zip").write_bytes(zipped)
    assert find_agent(hub).path.name == "ppo-CartPole-v1.zip"  # the final one
    (hub / "ppo-CartPole-v1.zip").unlink()
    (hub / "first_model.zip").write_bytes(zipped)
    with pytest.raises(ValueError, match=r"holds first_model.zip, last_model.zip; name the archive itself"):
        find_agent(hub)


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
