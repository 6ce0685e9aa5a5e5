"""Fine-tuning: a whole model rebuilt from an archive acts as it did, and trains on with the bits it will run at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

from quarl_lib.quantization.qat import fake_quant_layers
from quarl_lib.sb3 import SHIPPED_AGENTS, AgentFile, evaluate, find_agents, fine_tune, load_agent, tuning
from quarl_lib.sb3.live import acting_policy
from quarl_lib.sb3.qat_export import trained_agent, trained_precision
from quarl_lib.sb3.rebuild import rebuild_model
from quarl_lib.sb3.tuning import training_env

FILES = {file.name: file for file in find_agents(SHIPPED_AGENTS)}


@pytest.mark.parametrize("name", FILES)
def test_a_rebuilt_model_predicts_as_the_agent(name):
    agent = load_agent(FILES[name])
    small = {} if agent.algorithm in ("A2C", "PPO") else {"buffer_size": 10}
    model = rebuild_model(FILES[name].path, agent.algorithm, training_env(agent, None, 8), hyperparameters=small)
    raw = np.random.default_rng(0).normal(size=(50, *(agent.observation_space.shape or ()))).astype(np.float32)
    normalized = agent.normalize(raw)
    np.testing.assert_allclose(
        model.predict(normalized, deterministic=True)[0], agent.policy.act(normalized), atol=1e-6
    )


class Watch(BaseCallback):
    """Note the acting weights while they train: those that are kept may be the archive's own."""

    def _on_step(self) -> bool:
        self.weights = {name: value.detach().clone() for name, value in acting_policy(self.model).named_parameters()}
        return True


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_archives_with_two_critics_train_on(algorithm, tmp_path):
    model_class = getattr(stable_baselines3, algorithm)
    options = {"learning_starts": 20, "batch_size": 8, "buffer_size": 200, "policy_kwargs": {"net_arch": [16, 16]}}
    model: Any = model_class("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", **options).learn(40)
    path = tmp_path / f"{algorithm.lower()}-Pendulum-v1.zip"
    model.save(path)
    file = AgentFile(algorithm, "Pendulum-v1", path, "sb3")
    env = training_env(load_agent(file), None)
    twin: Any = rebuild_model(path, algorithm, env)
    states = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    actions = torch.tanh(states[:, :1])
    for one, other in zip(model.critic(states, actions), twin.critic(states, actions), strict=True):
        torch.testing.assert_close(one, other)
    if algorithm == "SAC":
        assert torch.equal(model.log_ent_coef, twin.log_ent_coef)
    watch = Watch()
    tuned = fine_tune(file, None, "int4", 30, hyperparameters={"batch_size": 8}, callback=[watch])
    assert all(layer.running_enabled.item() for _, layer in fake_quant_layers(tuned.policy.actor))
    before, after = dict(acting_policy(model).named_parameters()), watch.weights
    assert before["latent.1.0.weight" if algorithm == "SAC" else "latent.1.weight"].shape == (16, 3)
    assert any(not torch.equal(value, after[name]) for name, value in before.items() if name in after)


def test_q_learning_goes_on_in_small_steps_that_end_at_0(monkeypatch):
    monkeypatch.setattr(tuning, "TRIALS", 1)
    model: Any = fine_tune(FILES["dqn/CartPole-v1"], None, "int4", 8)  # was trained at 1e-3, 64 and 0.98
    assert [model.lr_schedule(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([3e-4, 1.5e-4, 0.0])
    assert (model.batch_size, model.tau, model.target_update_interval) == (256, 0.01, 4)
    assert model.gamma == pytest.approx(0.99)
    assert model.exploration_rate == 0.05
    model = fine_tune(FILES["dqn/CartPole-v1"], None, "int4", 8, hyperparameters={"batch_size": 16})
    assert model.batch_size == 16  # what the caller says wins
    assert (tuning.trials_of("DQN"), tuning.trials_of("PPO")) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int4", "int3", "int2"])
def test_q_learning_is_mended_at_few_bits(precision):
    file = FILES["dqn/CartPole-v1"]
    agent = load_agent(file)
    tuned = trained_agent(fine_tune(file, None, precision, 10_000), agent)
    returns = evaluate(tuned, tuned.policy, 20, 1_000_000).episode_return
    assert returns.mean() >= 475  # fp32: 500; rounded alone: 107 at 4 bits, 14 at 3, 12 at 2


@pytest.mark.slow
def test_two_bits_that_ruin_a_policy_are_mended():
    from quarl_lib.inference import make_engine, pack
    from quarl_lib.sb3.spec import agent_spec, evaluate_engine

    file = FILES["ddpg/Pendulum-v1"]
    agent = load_agent(file)

    def mean_return(spec, weights):
        engine = make_engine(spec, "int2")
        engine.load(pack(spec, weights, "int2"))
        return evaluate_engine(agent, engine, 20, 1_000_000).episode_return.mean()

    model = fine_tune(file, None, "int2", 4000)
    assert trained_precision(model) == "int2"
    assert mean_return(*agent_spec(trained_agent(model, "Pendulum-v1"))) > mean_return(*agent_spec(agent)) + 300
