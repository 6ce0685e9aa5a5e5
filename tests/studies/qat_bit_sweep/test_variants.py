"""What else may decide at few bits: each variant changes the one thing that it names, and is held against the rest."""

import gymnasium
import pandas as pd
import pytest
import torch

from quarl_lib.quantization.engine_grid import EngineInput, EngineWeight
from quarl_lib.quantization.lsq import LearnedEngineInput, LearnedEngineStep
from quarl_lib.quantization.qat import fake_quant_layers, start_quantization
from quarl_lib.sb3.qat_policies import quantized_recipe
from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.sb3.train import make_model, make_training_env
from quarl_lib.studies import qat_bit_sweep as study
from quarl_lib.studies.qat_bit_sweep import sentences
from quarl_lib.studies.qat_bit_sweep.bits import Bits
from quarl_lib.studies.qat_bit_sweep.variants import vary_bits, vary_model, vary_quantization, vary_recipe


def model_of(variant: str, algorithm: str = "A2C"):
    recipe = vary_recipe(recipe_for(algorithm, "CartPole-v1"), variant)
    config = vary_bits(Bits.parse("int2"), variant).config("qat")
    recipe = quantized_recipe(recipe, vary_quantization(config, variant))
    model = make_model(recipe, make_training_env(recipe, 0), 0)
    vary_model(model, variant)
    start_quantization(model.policy)
    return model


def test_bits_change_where_the_variant_says():
    layers = [layer for _, layer in fake_quant_layers(model_of("observation_8").policy)]
    assert [layer.input_quantizer.num_bits for layer in layers] == [8, 8, 8]
    assert [layer.weight_quantizer.num_bits for layer in layers] == [8, 2, 8]
    layers = [layer for _, layer in fake_quant_layers(model_of("narrow_edges").policy)]
    assert [layer.weight_quantizer.num_bits for layer in layers] == [2, 2, 2]
    assert [layer.input_quantizer.num_bits for layer in layers] == [16, 8, 16]


def test_wide_has_twice_the_weights_between_hidden_layers():
    middle = model_of("wide").policy.mlp_extractor.policy_net[2]
    assert middle.weight.numel() == pytest.approx(2 * 64 * 64, rel=0.02)


def test_layer_norm_stands_before_the_activation():
    policy = model_of("layer_norm").policy
    hidden = torch.randn(5, 64) * 7 + 3
    normal = (hidden - hidden.mean(1, keepdim=True)) / (hidden.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(policy.mlp_extractor.policy_net[1](hidden), normal.tanh())


@pytest.mark.parametrize("algorithm", ["A2C", "DQN"])
def test_weight_decay_reaches_the_optimizer(algorithm):
    decays = {group["weight_decay"] for group in model_of("weight_decay", algorithm).policy.optimizer.param_groups}
    assert decays == {1e-4}


@pytest.mark.parametrize(("variant", "inputs"), [("learned_steps", EngineInput), ("static_inputs", LearnedEngineInput)])
def test_steps_are_learned_of_hidden_layers(variant, inputs):
    layers = [layer for _, layer in fake_quant_layers(model_of(variant).policy)]
    assert [type(layer.weight_quantizer) for layer in layers] == [EngineWeight, LearnedEngineStep, EngineWeight]
    assert [type(layer.input_quantizer) for layer in layers] == [EngineInput, inputs, EngineInput]


def test_fp32_targets_compute_in_fp32_and_still_follow_the_network():
    model = model_of("fp32_targets", "DQN")
    target, network = model.q_net_target, model.q_net
    observation = plain = torch.from_numpy(gymnasium.make("CartPole-v1").reset(seed=0)[0])[None]
    for layer in target.q_net:
        plain = (
            torch.nn.functional.linear(plain, layer.weight, layer.bias) if hasattr(layer, "weight") else layer(plain)
        )
    torch.testing.assert_close(target(observation), plain, rtol=0, atol=0)
    assert not torch.equal(network(observation), target(observation))
    model.learn(300)  # the recipe copies weights and running_* buffers to the target on the way
    torch.testing.assert_close(target.q_net[2].weight, network.q_net[2].weight)


def test_variants_of_the_first_agent_stand_beside_its_training_without_them(tmp_path):
    config = study.Config(
        agents=["A2C/CartPole-v1/400"], start_from="", bits=["int4", "int2"], methods=["qat", "fine_tune"],
        variants=["from_start", "observation_8"], fine_tune_steps=40, episodes=2, calibration_steps=50, workers=1,
        cells_dir=str(tmp_path / "cells"),
    )  # fmt: skip
    table = study.run(config)
    tried = study.beside_base(table, config.bits)
    assert list(tried.variant) == ["from_start", "observation_8", "warm_start"]
    mean = table.groupby(["method", "weight_bits", "variant"]).episode_return.mean()
    assert list(tried.mean_return) == pytest.approx(
        [mean["qat", 2, "from_start"], mean["qat", 2, "observation_8"], mean["fine_tune", 2, ""]]
    )
    assert list(tried.without) == pytest.approx([mean["qat", 2, ""]] * 3)
    delays = table[table.method == "qat"].groupby("variant").quant_delay_steps.first()
    assert delays.to_dict() == {"": 200, "from_start": 0, "observation_8": 200}
    plain = study.summarize(table)
    assert len(plain) == 1 + 2 * 3  # fp32, and ptq, qat, fine_tune at two widths
    pd.testing.assert_frame_equal(plain, study.summarize(table[table.variant == ""]))


def rows(variant: str, method: str, returns: list[float], observation: int = 16) -> pd.DataFrame:
    return pd.DataFrame({"seed": range(len(returns)), "episode_return": returns}).assign(
        algorithm="PPO", env_id="CartPole-v1", variant=variant, method=method, grid="engine", weight_bits=2,
        activation_bits=8, observation_bits=observation, edge_bits=8,
    )  # fmt: skip


def test_a_change_pays_where_its_interval_lies_above_zero():
    table = pd.concat(
        [
            rows("", "qat", [100.0, 200.0, 300.0]),
            rows("wide", "qat", [150.0, 251.0, 349.0]),
            rows("observation_8", "qat", [90.0, 180.0, 320.0], observation=8),
            rows("", "fine_tune", [50.0, 149.0, 251.0]),
        ]
    )
    tried = study.beside_base(table, ["int4", "int2"])
    assert list(tried.difference) == pytest.approx([50, -10 / 3, -50])
    assert list(tried.pays) == [True, False, False]
    said = sentences.of_variants(tried)
    assert "of 3 changes 1 pay (hidden layers wider" in said
    assert "1 cost (fine-tuned from the fp32 policy" in said


def test_without_variants_or_with_one_seed_nothing_is_claimed():
    table = pd.concat([rows("", "qat", [100.0]), rows("wide", "qat", [150.0])])
    assert "nothing is shown" in sentences.of_variants(study.beside_base(table, ["int2"]))
    assert "Nothing else was tried" in sentences.of_variants(study.beside_base(rows("", "qat", [1.0]), ["int2"]))
