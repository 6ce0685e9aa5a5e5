"""Nothing stays patched, what is not understood is refused, and the report adds up."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rollout_models import STEPS, Seen, env_of, model_of
from stable_baselines3 import PPO
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv

from quarl_lib.quantization.qat import QATConfig
from quarl_lib.sb3.qat_policies import QATActorCriticPolicy
from quarl_lib.sb3.rollouts import Gain, QuantizedRollouts, gain, quantized_rollouts, reliance

README = Path(__file__).parents[3] / "README.md"
PATCHED = {"forward", "predict", "set_training_mode", "compute_returns_and_advantage"}


def patched(model) -> set[str]:
    return PATCHED & (set(vars(model.policy)) | set(vars(getattr(model, "rollout_buffer", object))))


class Stop(Seen):
    def _on_step(self) -> bool:
        assert patched(self.model)
        if self.n_calls == 5:
            raise KeyboardInterrupt
        return True


class Counted:
    """An engine that notes the shape of what it is called with."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.shapes = engine, list[tuple[int, ...]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def __call__(self, observations: np.ndarray) -> Any:
        self.shapes.append(observations.shape)
        return self.engine(observations)


RANDOM = 3  # steps of four environments before SAC's `learning_starts` of 10


@pytest.mark.parametrize(
    ("algorithm", "env_id", "size", "calls"),
    [("PPO", "CartPole-v1", 4, 2 * STEPS), ("A2C", "Pendulum-v1", 3, 2 * STEPS),
     ("SAC", "Pendulum-v1", 3, 2 * STEPS - RANDOM)],
)  # fmt: skip
def test_one_engine_call_a_step_serves_all_environments(algorithm, env_id, size, calls):
    model = model_of(algorithm, env_of(env_id, 4))
    with quantized_rollouts(model, "int8") as handle:
        counted: Any = Counted(handle.actor.engine)
        handle.actor.engine = counted
        model.learn(2 * STEPS * 4)
    assert counted.shapes == [(4, size)] * calls
    assert handle.steps == 4 * calls


@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
def test_context_restores_everything_after_an_exception(algorithm):
    model = model_of(algorithm, env_of("Pendulum-v1"))
    before = set(vars(model)), set(vars(model.policy))
    with pytest.raises(KeyboardInterrupt), quantized_rollouts(model):
        model.learn(STEPS, callback=Stop())
    assert patched(model) == set()
    assert set(vars(model.policy)) == before[1]
    assert all(not optimizer._optimizer_step_post_hooks for optimizer in optimizers(model))


def optimizers(model):
    parts: list[Any] = [model.policy, getattr(model, "actor", None)]
    return [part.optimizer for part in parts if hasattr(part, "optimizer")]


def test_callback_after_an_exception_hands_on_and_goes_with_the_next_rollout():
    model = model_of("PPO", env_of("CartPole-v1"))
    callback = QuantizedRollouts("int2")
    with pytest.raises(KeyboardInterrupt):
        model.learn(STEPS, callback=[callback, Stop()])
    observation = torch.ones(1, 4)
    torch.testing.assert_close(model.policy(observation)[1], model.policy.predict_values(observation))
    seen = Seen()
    model.learn(STEPS, callback=seen)
    assert patched(model) == set()
    assert callback.handle.steps == 5
    fp32 = model_of("PPO", env_of("CartPole-v1")).policy  # int2 would give other log-probabilities
    _, log_probs, _ = fp32.evaluate_actions(
        torch.from_numpy(seen.rollouts[0]["observations"][:, 0]),
        torch.from_numpy(seen.rollouts[0]["actions"][:, 0, 0]).long(),
    )
    np.testing.assert_allclose(seen.rollouts[0]["log_probs"][:, 0], log_probs.detach(), rtol=1e-4, atol=1e-5)
    model.learn(STEPS, callback=callback)
    assert callback.handle.steps == STEPS


def test_saving_copying_and_pickling_in_between_give_plain_models(tmp_path):
    model = model_of("PPO", env_of("CartPole-v1", 2, normalize=True))
    with quantized_rollouts(model, "int8") as handle:
        copies: list[Any] = []

        def keep(*_: object) -> bool:
            copies.append(copy.deepcopy(model.policy))
            return True

        model.learn(4 * STEPS, callback=keep)
        model.save(tmp_path / "model.zip")
        model.get_vec_normalize_env().save(str(tmp_path / "statistics.pkl"))
        twin = copies[-1]  # of the second rollout, after learning
        pickled = pickle.loads(pickle.dumps(twin))
        loaded = PPO.load(tmp_path / "model.zip", env=env_of("CartPole-v1", 2), device="cpu")
        with quantized_rollouts(loaded, "int8"):
            loaded.learn(2 * STEPS)
        model.learn(2 * STEPS, reset_num_timesteps=False)
    assert handle.steps == 6 * STEPS
    for policy in (twin, pickled):
        assert policy.forward.__self__ is policy
        assert policy(torch.zeros(1, 4))[1].isfinite().all()
    assert patched(loaded) == set()


class OwnForward(ActorCriticPolicy):
    def forward(self, obs, deterministic=False):
        return super().forward(obs, deterministic)


class Odd(gymnasium.Env):
    """Spaces that no engine knows."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


def odd(observation_space, action_space):
    return DummyVecEnv([lambda: Odd(observation_space, action_space)])


BOX = spaces.Box(-1.0, 1.0, (3,))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: model_of("PPO", env_of("Pendulum-v1"), use_sde=True), "gSDE"),
        (lambda: model_of("SAC", env_of("Pendulum-v1"), use_sde=True), "gSDE"),
        (lambda: PPO(OwnForward, env_of("CartPole-v1"), device="cpu"), "OwnForward.forward"),
        (lambda: PPO(QATActorCriticPolicy, env_of("CartPole-v1"), device="cpu",
                     policy_kwargs={"quantization": QATConfig(4)}), "no engine runs it"),
        (lambda: model_of("PPO", odd(BOX, spaces.MultiBinary(3))), "action_space"),
        (lambda: model_of("PPO", odd(spaces.Discrete(4), spaces.Discrete(2))), "observation_space"),
    ],
    ids=["gsde", "gsde-sac", "forward", "qat", "actions", "observations"],
)  # fmt: skip
def test_what_is_not_understood_is_refused_and_nothing_patched(make, why):
    model = make()
    with pytest.raises(ValueError, match=why), quantized_rollouts(model):
        pass
    assert patched(model) == set()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"precision": "int5"}, "precision is 'int5'"),
        ({"update_period": 0}, "update_period=0"),
        ({"correction": "all"}, "correction='all'"),
    ],
)
def test_wrong_parameters_are_named(options, why):
    with pytest.raises(ValueError, match=why), quantized_rollouts(model_of("PPO", env_of("CartPole-v1")), **options):
        pass


def test_off_policy_takes_no_correction_and_contexts_do_not_nest():
    model = model_of("DQN", env_of("CartPole-v1"))
    with pytest.raises(ValueError, match="learns from any policy"), quantized_rollouts(model, correction="none"):
        pass
    with quantized_rollouts(model), pytest.raises(ValueError, match="replaced already"), quantized_rollouts(model):
        pass
    assert patched(model) == set()


def test_a_version_that_works_otherwise_is_refused(monkeypatch):
    reliance.check_version()
    monkeypatch.setitem(reliance.RELIED_ON, ActorCriticPolicy.forward, "0" * 12)
    reliance.check_version.cache_clear()
    with pytest.raises(RuntimeError, match=r"ActorCriticPolicy.forward; pip install stable-baselines3=="):
        QuantizedRollouts("int8").init_callback(model_of("PPO", env_of("CartPole-v1")))
    reliance.check_version.cache_clear()


def test_weights_that_are_not_finite_end_the_training():
    model = model_of("PPO", env_of("CartPole-v1"))
    with torch.no_grad():
        model.policy.action_net.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="must be finite"), quantized_rollouts(model):
        model.learn(STEPS)
    assert patched(model) == set()


def test_progress_bar_works():
    pytest.importorskip("rich")
    model = model_of("A2C", env_of("CartPole-v1"))
    with quantized_rollouts(model) as handle:
        model.learn(STEPS, progress_bar=True)
    assert handle.steps == STEPS


@pytest.mark.parametrize("algorithm", ["PPO", "SAC"])
def test_report_adds_up(algorithm):
    model = model_of(algorithm, env_of("Pendulum-v1"))
    with quantized_rollouts(model, "int8") as handle:
        with pytest.raises(ValueError, match="let model"):
            handle.report()
        model.learn(2 * STEPS)
    report = handle.report()
    assert report.inference_share + report.environment_share + report.learning_share == pytest.approx(1)
    before = report.before
    assert before.inference_share + before.environment_share + before.learning_share == pytest.approx(1)
    assert before.limit == pytest.approx(1 / (1 - before.inference_share))
    # What is no inference takes the same seconds either way.
    assert report.speedup == pytest.approx((1 - report.inference_share) / (1 - before.inference_share))
    assert report.payload_bytes == handle.actor.payload_bytes
    for words in ("int8", "inference", "updates of", "steps old", f"{report.payload_bytes:,} bytes"):
        assert words in str(report)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_gain_measures_on_copies_and_leaves_everything_as_it_is(algorithm):
    env = env_of("CartPole-v1", 2, normalize=True) if algorithm == "PPO" else env_of("CartPole-v1")
    model = model_of(algorithm, env)
    env.reset()
    state, mean = env.unwrapped.envs[0].unwrapped.state, getattr(env, "obs_rms", None) and env.obs_rms.mean.copy()
    weights = copy.deepcopy(model.policy.state_dict())
    drawn = torch.get_rng_state().clone(), np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
    found = gain(model)
    assert found.inference_share + found.environment_share + found.learning_share == pytest.approx(1)
    assert 0 < found.inference_share < 1
    assert f"inference is {found.inference_share:.0%} of your time; at best {found.limit:.2f} x" in str(found)
    assert model.num_timesteps == 0
    assert env.unwrapped.envs[0].unwrapped.state is state
    assert mean is None or (env.obs_rms.mean == mean).all()
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (np.random.get_state(legacy=False)["state"]["key"] == drawn[1]).all()  # noqa: NPY002
    for name, value in model.policy.state_dict().items():
        assert torch.equal(value, weights[name])


def test_gain_asks_for_environments_where_these_cannot_be_copied():
    model = model_of("PPO", env_of("CartPole-v1"))
    model.env.unwrapped.envs[0].unwrapped.lock = threading.Lock()  # as an open file or a process cannot be
    with pytest.raises(ValueError, match=r"cannot be copied .* gain\(model, env\)"):
        gain(model)
    assert gain(model, env_of("CartPole-v1")).learning_share > 0


def test_nothing_to_gain_is_said():
    assert str(Gain(0.02, 0.48, 0.5)).endswith("there is nothing to gain")
    assert str(Gain(0.38, 0.12, 0.5)) == "inference is 38% of your time; at best 1.61 x"


@pytest.mark.slow
def test_the_example_of_the_readme_runs(capsys):
    (example,) = [part for part in README.read_text().split("```") if "import gain, quantized_rollouts" in part]
    exec(example.removeprefix("python"), {})
    printed = capsys.readouterr().out
    assert "of your time; at best" in printed
    assert "int8 on native, 4,096 steps" in printed
