"""quarl export: files that act like the agent, cards that say so, nothing left behind where they do not."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from inference_cases import mlp, random_weights, with_static_inputs

from quarl_lib import QuantizedPolicy, cli
from quarl_lib.deploy import export, parity
from quarl_lib.deploy.c_build import compiler
from quarl_lib.deploy.source import read_source
from quarl_lib.inference.backends.reference import NumpyEngine
from quarl_lib.inference.pack import pack

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "source", "algorithm", "env_id", "precision", "spec", "payload_bytes", "library_version", "parity", "timing",
    "layout_version",
}  # fmt: skip
PARITY = {
    "observations", "same_action_rate", "max_abs_difference", "mean_abs_difference", "episodes",
    "mean_return_original", "mean_return_exported", "paired_ci_low", "paired_ci_high",
}  # fmt: skip
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize(("to", "precision"), [("onnx", "int8"), ("onnx", "fp32"), ("c", "int8"), ("policy", "int4")])
def test_an_export_acts_like_its_engine_and_says_so(to, precision, tmp_path, capsys):
    if to == "c" and compiler() is None:
        pytest.skip("no C compiler")
    output = tmp_path / f"policy.{to}"
    assert cli.main(["export", "ddpg/Pendulum-v1", "--to", to, "--precision", precision, "-o", str(output)]) == 0
    assert "20 paired episodes" in capsys.readouterr().out
    card = json.loads((tmp_path / f"policy.{to}.json").read_text())
    assert set(card) >= KEYS
    found = card["parity"]
    assert set(found) == PARITY
    assert found["observations"] >= 1000
    assert (
        found["paired_ci_low"]
        <= found["mean_return_exported"] - found["mean_return_original"]
        <= found["paired_ci_high"]
    )
    if precision == "fp32":
        assert found["max_abs_difference"] <= 1e-5
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {output.name, f"{output.name}.json"} | ({"policy.h"} if to == "c" else set())
    if to == "onnx":
        session = onnxruntime.InferenceSession(str(output), providers=["CPUExecutionProvider"])
        assert json.loads(session.get_modelmeta().custom_metadata_map["card"]) == card
        x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
        batch = session.run(["action"], {"observation": x})[0]
        single = np.concatenate([session.run(["action"], {"observation": row[None]})[0] for row in x])
        np.testing.assert_allclose(batch, single, atol=1e-3)
        policy = QuantizedPolicy.from_sb3("ddpg/Pendulum-v1", precision)
        np.testing.assert_allclose(batch, policy.predict(x)[0], atol=1e-3)


def test_int8_graphs_hold_no_float_weights():
    onnx = pytest.importorskip("onnx")
    from quarl_lib.deploy.onnx import build_onnx

    policy = QuantizedPolicy.from_sb3("ppo/CartPole-v1", "int8")
    model = build_onnx(policy.spec, policy.packed, "int8", policy.action_shape)
    floats = [c for c in model.graph.initializer if c.data_type == onnx.TensorProto.FLOAT]
    assert max(np.prod(c.dims) for c in floats) <= 64
    assert sum(node.op_type == "MatMulInteger" for node in model.graph.node) == 5
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_int8_graphs_take_the_steps_that_inputs_learned(activation, tmp_path):
    pytest.importorskip("onnx")
    from quarl_lib.deploy.onnx import build_onnx

    rng = np.random.default_rng(0)
    spec = mlp([5, 40, 30, 3], activation=activation)
    plain = random_weights(spec, rng)
    learned = with_static_inputs(spec, plain, "int8", rng)
    assert any(layer.input_step is not None for layer in learned.layers)
    x = rng.standard_normal((30, 5)).astype(np.float32)
    outputs = {}
    for name, weights in (("plain", plain), ("learned", learned)):
        packed = pack(spec, weights, "int8")
        engine = NumpyEngine(spec, "int8")
        engine.load(packed)
        session = onnxruntime.InferenceSession(
            build_onnx(spec, packed, "int8", (3,)).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (outputs[name],) = session.run(None, {session.get_inputs()[0].name: x})
        np.testing.assert_allclose(outputs[name], engine(x), rtol=1e-5, atol=1e-4)
    assert np.abs(outputs["plain"] - outputs["learned"]).max() > 1e-3


@pytest.mark.parametrize("to", ["onnx", "c"])
def test_files_that_take_float32_are_refused_where_that_is_too_coarse(to, tmp_path, monkeypatch):
    source = read_source("a2c/MountainCarContinuous-v0")
    statistics = source.agent.normalization
    assert statistics is not None
    far = dataclasses.replace(statistics, mean=statistics.mean + np.array([0, 100 * statistics.std[1]]))

    def wide(dtype) -> object:
        space = spaces.Box(-np.inf, np.inf, (2,), dtype)
        agent = dataclasses.replace(source.agent, normalization=far, observation_space=space)
        return dataclasses.replace(source, agent=agent)

    monkeypatch.setattr(export, "read_source", lambda *arguments, **options: wide(np.float64))
    with pytest.raises(ValueError, match=r"feature 1 has a mean of .* float32, which is too coarse .* as a policy"):
        export.export("far", to, tmp_path / f"policy.{to}")
    assert list(tmp_path.iterdir()) == []
    export._check_float32(wide(np.float32))  # type: ignore[arg-type]


def test_another_policy_is_not_written(tmp_path, monkeypatch):
    def wrong(policy, source, output):
        return export.ExportedFile(lambda x: 1 - policy.predict(x)[0], {}, lambda x: {}, lambda: {output: b"wrong"})

    monkeypatch.setattr(export, "_policy", wrong)
    with pytest.raises(ValueError, match="acts otherwise than the int8 engine"):
        export.export("ppo/CartPole-v1", "policy", tmp_path / "p.quarl")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "onnx", "--precision", "int4", "-o", "p.onnx"], "int4, int3, int2 go to C"),
        (["--to", "onnx", "--precision", "banana", "-o", "p.onnx"], "banana"),
        (["--to", "c", "--precision", "int4g128", "-o", "p.c"], "C knows"),
        (["--to", "c", "-o", "p.txt"], "named .c"),
        (["--to", "c", "-o", "my-policy.c"], "my_policy"),
    ],
)
def test_what_is_not_done_is_refused_in_words(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", "ppo/CartPole-v1", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_parity_is_worked_out_by_hand():
    agent = read_source("ppo/Pendulum-v1").agent  # bounds -2 to 2: alike within 0.04
    found = parity.difference(np.array([[0.0], [1.0]]), np.array([[0.03], [1.5]]), agent)
    assert dataclasses.astuple(found) == pytest.approx((0.5, 0.5, 0.265))
    agent = read_source("ppo/CartPole-v1").agent
    assert parity.difference(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]), agent) == parity.Difference(
        0.75, None, None
    )


def test_the_readmes_five_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "README.md").read_text().split("## Your own agent in five lines")[1]
    (code,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], re.S)
    assert len(ast.parse(code).body) == 5
    names: dict = {}
    exec(code, names)
    assert names["same"].predict([0.01, 0.02, -0.03, 0.04])[0] == names["action"]


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_file_built_by_hand_acts(tmp_path):
    export.export("ppo/CartPole-v1", "c", tmp_path / "policy.c")
    main = '#include "policy.h"\n#include <stdio.h>\nint main(void) { float o[4] = {0.01f, 0.02f, -0.03f, 0.04f};\n'
    (tmp_path / "main.c").write_text(main + 'printf("%d", policy_act(o)); return 0; }\n')
    subprocess.run([str(compiler()), "main.c", "policy.c", "-o", "main", "-lm"], cwd=tmp_path, check=True)
    said = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    expected = QuantizedPolicy.from_sb3("ppo/CartPole-v1").predict(np.array([0.01, 0.02, -0.03, 0.04], np.float32))[0]
    assert int(said) == expected


@pytest.mark.parametrize("command", [["export", "--to", "c", "-o", "x.c"], ["bench"]])
def test_an_archive_that_is_none_is_refused_in_one_line(tmp_path, capsys, command):
    folder = tmp_path / "ppo" / "CartPole-v1"
    folder.mkdir(parents=True)
    (folder / "CartPole-v1.zip").write_text("no zip")
    assert cli.main([command[0], str(folder), *command[1:]]) == 2
    assert capsys.readouterr().err == "quarl: CartPole-v1.zip is damaged or cut short: File is not a zip file\n"
