"""QAT inside Stable-Baselines3: real trainings, tiny, of all four algorithms."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

from quarl_lib.inference.engines import make_engine, unsupported
from quarl_lib.inference.pack import pack
from quarl_lib.quantization.qat import QATConfig, fake_quant_layers, quantize_trained, start_quantization
from quarl_lib.sb3 import evaluate, keep_best
from quarl_lib.sb3.keep_best import PROOF_EPISODES, TRIAL_EPISODES, TRIAL_SEED, KeepBest
from quarl_lib.sb3.live import acting_policy
from quarl_lib.sb3.qat_export import engine_precision, plain_model, trained_agent, trained_precision
from quarl_lib.sb3.qat_policies import QuantDelay, quantized_recipe
from quarl_lib.sb3.recipes import Recipe
from quarl_lib.sb3.spec import agent_spec
from quarl_lib.sb3.train import make_model, make_training_env

SMALL = {"net_arch": [16, 16]}
OFF_POLICY = {"learning_starts": 32, "batch_size": 16, "buffer_size": 1000}
RECIPES = {
    "A2C": Recipe("A2C", "MountainCarContinuous-v0", 96, {"use_sde": True}, 2, True, SMALL),
    "PPO": Recipe("PPO", "Pendulum-v1", 96, {"n_steps": 16, "batch_size": 16, "n_epochs": 2}, 2, False, SMALL),
    "DQN": Recipe("DQN", "CartPole-v1", 96, {**OFF_POLICY, "target_update_interval": 24}, 1, False, SMALL),
    "DDPG": Recipe("DDPG", "Pendulum-v1", 96, {**OFF_POLICY, "noise_std": 0.1}, 1, False, SMALL),
}
ALGORITHMS = pytest.mark.parametrize("algorithm", list(RECIPES))
METHODS = pytest.mark.parametrize("options", [{}, {"method": "lsq"}], ids=["minmax", "lsq"])


def trained(algorithm: str, config: QATConfig | None = None, delay: int = 0, steps: int = 96):
    recipe = RECIPES[algorithm] if config is None else quantized_recipe(RECIPES[algorithm], config)
    model = make_model(recipe, make_training_env(recipe, seed=3), seed=3)
    return model.learn(steps, callback=None if config is None else QuantDelay(delay))


def observations(model, count: int = 256) -> np.ndarray:
    low, high = np.clip(model.observation_space.low, -2, 2), np.clip(model.observation_space.high, -2, 2)
    return np.random.default_rng(0).uniform(low, high, (count, *low.shape)).astype(np.float32)


def acting_layers(model):
    """Return the fake-quantized layers that act, those of target networks aside."""
    return [(name, layer) for name, layer in fake_quant_layers(model.policy) if "target" not in name]


@ALGORITHMS
@METHODS
def test_before_the_delay_a_run_is_its_fp32_twin(algorithm, options):
    plain, quantized = trained(algorithm), trained(algorithm, QATConfig(2, 2, 2, **options), delay=96)
    state = quantized.policy.state_dict()
    for name, value in plain.policy.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert plain.num_timesteps == quantized.num_timesteps


@ALGORITHMS
def test_after_the_delay_the_run_goes_another_way_on_quantized_weights(algorithm):
    plain, quantized = trained(algorithm), trained(algorithm, QATConfig(2, 2, 2), delay=40)
    state = quantized.policy.state_dict()
    assert any(not torch.equal(value, state[name]) for name, value in plain.policy.state_dict().items())
    layers = acting_layers(quantized)
    assert len(layers) == 3
    for _, layer in layers:
        assert layer.running_enabled == 1
        assert len(layer.quantized_weight().unique()) <= 4
        assert layer.input_quantizer.running_range[2] > 1  # batches seen


@pytest.mark.parametrize(("delay", "started"), [(0, True), (32, True), (96, False)])
def test_quantization_starts_with_the_first_rollout_after_the_delay(delay, started):
    recipe = quantized_recipe(RECIPES["PPO"], QATConfig())
    model = make_model(recipe, make_training_env(recipe, 0), 0)
    seen = []

    class Watch(QuantDelay):
        def _on_rollout_end(self) -> None:
            seen.append((self.model.num_timesteps, all(x.running_enabled for _, x in acting_layers(self.model))))

    model.learn(96, callback=Watch(delay))
    assert seen == [(steps, steps > delay) for steps in (32, 64, 96)]
    assert all(layer.running_enabled for _, layer in acting_layers(model))  # at the end in any case
    assert any(on for _, on in seen) == started


def test_a_delay_beyond_training_names_the_parameter():
    with pytest.raises(ValueError, match="quant_delay_steps=97: training ends after 96"):
        trained("A2C", QATConfig(), delay=97)
    with pytest.raises(ValueError, match="quant_delay_steps=-1"):
        QuantDelay(-1)


@ALGORITHMS
@METHODS
def test_a_saved_model_acts_the_same_and_trains_on(algorithm, options):
    model = trained(algorithm, QATConfig(3, 3, 8, **options), delay=40)
    stored = io.BytesIO()
    model.save(stored)
    stored.seek(0)
    loaded = type(model).load(stored, env=model.get_env(), device="cpu")
    x = observations(model)
    np.testing.assert_array_equal(model.predict(x, deterministic=True)[0], loaded.predict(x, deterministic=True)[0])
    before = acting_layers(loaded)[1][1].weight.clone()
    loaded.learn(64, reset_num_timesteps=False)
    assert not torch.equal(before, acting_layers(loaded)[1][1].weight)
    policy = type(model.policy).load(_policy_file(model), device="cpu")
    np.testing.assert_array_equal(model.predict(x, deterministic=True)[0], policy.predict(x, deterministic=True)[0])


def _policy_file(model) -> io.BytesIO:
    stored = io.BytesIO()
    model.policy.save(stored)
    stored.seek(0)
    return stored


@METHODS
def test_dqns_target_network_follows(options):
    model = trained("DQN", QATConfig(3, 3, 3, **options), delay=40)
    x = torch.from_numpy(observations(model))
    network, target = model.policy.q_net, model.policy.q_net_target
    assert not torch.equal(
        network(x), target(x)
    )  # 96 steps: last copied at 96, trained since? then at least ranges moved
    model._n_calls = 0
    for _ in range(24):
        model._on_step()
    network.set_training_mode(False)
    assert torch.equal(network(x), target(x))
    assert all(layer.running_enabled == 1 for _, layer in fake_quant_layers(target))


@METHODS
def test_ddpgs_target_network_follows(options):
    model = trained("DDPG", QATConfig(4, 4, 4, **options), delay=40)
    layers, targets = (dict(fake_quant_layers(network)) for network in (model.actor, model.actor_target))
    before = {name: layer.quantized_weight().clone() for name, layer in targets.items()}
    model.train(gradient_steps=3, batch_size=16)
    for name, target in targets.items():
        assert not torch.equal(before[name], target.quantized_weight())
        for quantizer in ("input_quantizer", "weight_quantizer"):
            ours, theirs = (dict(getattr(side, quantizer).named_buffers()) for side in (layers[name], target))
            assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    assert not model.actor_target.training


@ALGORITHMS
def test_acting_policies_act_as_the_model(algorithm):
    model = trained(algorithm, QATConfig(4, 4, 8), delay=40)
    x = observations(model)
    agent = trained_agent(model, RECIPES[algorithm].env_id)
    expected = model.predict(x, deterministic=True)[0]
    np.testing.assert_allclose(agent.policy.act(x), expected, atol=1e-6)
    assert (agent.normalization is not None) == (algorithm == "A2C")
    if agent.normalization:
        np.testing.assert_allclose(agent.normalize(x), model.get_vec_normalize_env().normalize_obs(x), atol=1e-6)


@ALGORITHMS
def test_plain_archives_hold_the_quantized_weights(algorithm, tmp_path):
    model = trained(algorithm, QATConfig(3, 32, 32), delay=40)
    plain_model(model).save(tmp_path / "plain.zip")
    plain = type(model).load(tmp_path / "plain.zip", device="cpu")
    x = observations(model)
    np.testing.assert_array_equal(model.predict(x, deterministic=True)[0], plain.predict(x, deterministic=True)[0])
    assert not list(fake_quant_layers(plain.policy))
    state = plain.policy.state_dict()
    for name, layer in acting_layers(model):
        assert torch.equal(state[f"{name}.weight"], layer.quantized_weight())
        assert len(state[f"{name}.weight"].unique()) <= 8


@pytest.mark.slow
def test_plain_archives_load_without_this_package(tmp_path):
    lines = [
        "import sys, types, numpy as np",
        "sys.modules['quarl_lib'] = None  # importing it fails from here on",
        "sys.modules['tensorboard.compat.notf'] = types.ModuleType('notf')  # saves TensorFlow's import",
        "import stable_baselines3 as sb3",
    ]
    for algorithm in RECIPES:
        model = trained(algorithm, QATConfig(3, 32, 32), delay=40)
        plain_model(model).save(tmp_path / f"{algorithm}.zip")
        x = observations(model)
        np.savez(tmp_path / f"{algorithm}.npz", x=x, action=model.predict(x, deterministic=True)[0])
        lines += [
            f"model = sb3.{algorithm}.load(r'{tmp_path}/{algorithm}.zip', device='cpu')",
            f"stored = np.load(r'{tmp_path}/{algorithm}.npz')",
            "action = model.predict(stored['x'], deterministic=True)[0]",
            "np.testing.assert_allclose(action, stored['action'], atol=1e-6)",
            "weights = {n: v for n, v in model.policy.state_dict().items() if n.endswith('weight')}",
            "parts = ('policy_net', 'action_net', 'q_net.q_net', 'actor.mu')",
            "levels = [len(v.unique()) for n, v in weights.items() if any(part in n for part in parts)]",
            "assert len(levels) == 3 and max(levels) <= 8, levels",
        ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ValueError, match=r"policy=.*give a model trained with"):
        plain_model(trained("A2C"))


@ALGORITHMS
@pytest.mark.parametrize(
    ("precision", "method"),
    [("int8", "minmax"), ("int4", "minmax"), ("int3", "lsq"), ("int8", "static"), ("int2", "static")],
)
def test_the_engine_acts_as_the_simulation(algorithm, precision, method):
    options = {"method": "lsq", "static_inputs": True} if method == "static" else {"method": method}
    model = trained(algorithm, replace(QATConfig.for_engine(precision), **options), delay=40)
    agent = trained_agent(model, RECIPES[algorithm].env_id)
    spec, weights = agent_spec(agent)
    assert any(layer.input_step is not None for layer in weights.layers) == (method == "static")
    assert trained_precision(model) == precision
    backend = "numpy" if unsupported(spec, precision, "native") else "native"  # one arithmetic, tested elsewhere
    engine = make_engine(spec, precision, backend)
    engine.load(pack(spec, weights, precision))
    x = observations(model, 500)
    actions, simulated = engine(x), agent.policy.act(agent.normalize(x))
    if agent.policy.discrete:
        assert len(np.unique(simulated)) > 1
        np.testing.assert_array_equal(actions, simulated)
    else:
        np.testing.assert_allclose(actions, simulated, atol=1e-3 * float((agent.policy.high - agent.policy.low)[0]))
        assert simulated.std() > 0


def test_exports_that_no_engine_computes_name_the_parameter():
    good = QATConfig.for_engine("int4")
    assert engine_precision(good) == "int4"
    for field, value in {"grid": "affine", "observation_bits": 8, "edge_bits": 4, "weight_bits": 5}.items():
        with pytest.raises(ValueError, match=f"{field}={value!r}"):
            engine_precision(QATConfig(**{**vars(good), field: value}))
    recipe = quantized_recipe(RECIPES["A2C"], good)
    untrained = make_model(recipe, make_training_env(recipe, 0), 0)
    with pytest.raises(ValueError, match="quant_delay_steps"):
        trained_precision(untrained)
    assert trained_precision(trained("A2C")) == ""


def test_images_are_quantized_from_the_first_convolution_on():
    from gymnasium import spaces
    from stable_baselines3.common.torch_layers import NatureCNN

    from quarl_lib.sb3.qat_policies import QATActorCriticPolicy

    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    policy = QATActorCriticPolicy(
        space, spaces.Discrete(3), lambda _: 1e-3, features_extractor_class=NatureCNN, quantization=QATConfig(4, 4, 8)
    )
    start_quantization(policy)
    layers = list(fake_quant_layers(policy))
    assert [layer.input_quantizer.num_bits for _, layer in layers[:2]] == [8, 4]
    assert sum(layer.weight.ndim == 4 for _, layer in layers) == 3
    for _, layer in layers:
        channels = layer.quantized_weight() if layer.weight.ndim == 4 else [layer.quantized_weight()]
        assert all(len(channel.unique()) <= 16 for channel in channels)


def test_ptq_on_the_same_grid_leaves_the_model_alone():
    model = trained("PPO")
    policy, x = acting_policy(model), torch.from_numpy(observations(model))
    before = policy(x)
    quantized = quantize_trained(policy, ("latent", "head"), QATConfig(2, 2, 2), x)
    assert torch.equal(policy(x), before)
    assert not torch.allclose(quantized(x), before, atol=1e-2)
    assert [name for name, _ in fake_quant_layers(quantized)][-1] == "head"


def test_the_best_weights_after_the_delay_are_kept():
    recipe = quantized_recipe(RECIPES["DQN"], QATConfig(4, 4, 8))
    model = make_model(recipe, make_training_env(recipe, 0), 0)
    keep = KeepBest("CartPole-v1", from_step=40, every_steps=8)
    tried = []

    class Watch(BaseCallback):
        """Note each trial: its step, the best return so far, whether quantization is on."""

        next_trial = keep.next_trial

        def _on_rollout_start(self) -> None:
            if keep.next_trial != self.next_trial:
                self.next_trial = keep.next_trial
                self._on_training_end()

        def _on_step(self) -> bool:
            return True

        def _on_training_end(self) -> None:
            on = all(layer.running_enabled for _, layer in acting_layers(model))
            tried.append((model.num_timesteps, keep.best, on))

    model.learn(96, callback=[QuantDelay(40), keep, Watch()])
    assert [step for step, _, _ in tried] == [48, 56, 64, 72, 80, 88, 96]
    assert all(on for _, _, on in tried)
    agent = trained_agent(model, "CartPole-v1")
    returns = evaluate(agent, agent.policy, PROOF_EPISODES, TRIAL_SEED).episode_return
    assert returns.mean() == max(best for _, best, _ in tried)
    assert keep.seconds > 0


def test_luck_in_few_episodes_is_not_kept(monkeypatch):
    recipe = quantized_recipe(RECIPES["DQN"], QATConfig(4, 4, 8))
    model = make_model(recipe, make_training_env(recipe, 0), 0)
    start_quantization(model.policy)
    keep = KeepBest("CartPole-v1", from_step=0, every_steps=8)
    keep.init_callback(model)
    means = iter([(TRIAL_EPISODES, 50.0), (PROOF_EPISODES, 45.0), (TRIAL_EPISODES, 60.0), (PROOF_EPISODES, 44.0)])

    def played(agent, policy, episodes, seed):
        expected, mean = next(means)
        assert (episodes, seed) == (expected, TRIAL_SEED)
        return pd.DataFrame({"episode_return": [mean] * episodes})

    monkeypatch.setattr(keep_best, "evaluate", played)
    keep._on_training_end()
    kept = {name: value.clone() for name, value in model.policy.state_dict().items()}
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.add_(1.0)
    keep._on_training_end()  # 60 in ten episodes, 44 in thirty
    assert keep.best == 45.0
    assert all(torch.equal(value, kept[name]) for name, value in model.policy.state_dict().items())
