"""A policy as one ONNX file, from the environment's observation to its action: normalisation, layers, head, scaling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper

from quarl_lib import __version__
from quarl_lib.deploy.onnx_integer import IntegerGraph
from quarl_lib.inference.backends import onnx as onnx_backend
from quarl_lib.inference.backends.onnx_graph import INPUT, OUTPUT, build
from quarl_lib.inference.heads import middle_and_half_width
from quarl_lib.inference.pack import as_bytes, check_buffer, unpack
from quarl_lib.inference.spec import PolicySpec

OPSET, IR_VERSION = 17, 8
SUPPORTED = ("fp32", "fp16", "int8")
ACTION = "action"


def unsupported(spec: PolicySpec, precision: str) -> str | None:
    """Return why there is no ONNX graph of this policy at this precision, None if there is."""
    if precision not in SUPPORTED:
        return (
            f"precision {precision!r}: ONNX knows {', '.join(SUPPORTED)}; int4, int3, int2 go to C or to a policy file"
        )
    if spec.conv and precision == "int8":
        return "convolutions at int8 need ranges that drift with the policy; export images at fp32 or fp16"
    if spec.head.kind in ("categorical", "gaussian"):
        return f"a {spec.head.kind} head draws; export the deterministic policy"
    return None


def build_onnx(spec: PolicySpec, buffer: object, precision: str, action_shape: tuple[int, ...]) -> ModelProto:
    """Return the model: "observation" [n, ...] to "action", int64 [n] or float32 [n, *action_shape].

    Raises:
        ValueError: there is no such graph, in words.
    """
    reason = unsupported(spec, precision)
    if reason:
        raise ValueError(reason)
    check_buffer(spec, precision, buffer)
    if precision == "int8":
        model = _integer(spec, as_bytes(buffer))
    else:
        model = build(spec, unpack(spec, buffer), "fp32")
        if precision == "fp16":
            _halve(model)
    _end(model, spec, action_shape)
    onnx.checker.check_model(model, full_check=True)
    return model


def add_card(model: ModelProto, card: Mapping[str, Any]) -> bytes:
    """Return the file: the model with the card among its metadata, as one JSON text."""
    helper.set_model_props(model, {"card": json.dumps(card)})
    model.producer_name, model.producer_version = "quarl_lib", __version__
    return model.SerializeToString()


class OnnxPolicy:
    """An exported graph run by onnxruntime on one thread, from its bytes."""

    def __init__(self, message: bytes) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = onnx_backend.SILENT
        self.session = ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """Return the actions for a batch; all of it goes through in one run."""
        return self.session.run([ACTION], {INPUT: observations})[0]


def _integer(spec: PolicySpec, data: np.ndarray) -> ModelProto:
    graph = IntegerGraph()
    x = graph.policy(spec, "int8", data, INPUT)
    if spec.head.kind == "tanh":
        middle, half = middle_and_half_width(spec)
        x = graph.node("Mul", graph.node("Tanh", x), graph.constant("half_width", half))
        x = graph.node("Add", x, graph.constant("middle", middle))
    elif spec.head.kind == "clip":
        low, high = (np.asarray(bound, np.float32) for bound in (spec.head.low, spec.head.high))
        x = graph.node("Min", graph.node("Max", x, graph.constant("low", low)), graph.constant("high", high))
    graph.node("Identity", x, output=OUTPUT)
    inputs = [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", *spec.observation_shape])]
    outputs = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", spec.action_dim])]
    proto = helper.make_graph(graph.nodes, "policy", inputs, outputs, list(graph.constants.values()))
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _end(model: ModelProto, spec: PolicySpec, action_shape: tuple[int, ...]) -> None:
    """Turn the graph's output into the environment's action."""
    graph = model.graph
    if spec.head.discrete:
        graph.node.append(helper.make_node("ArgMax", [OUTPUT], [ACTION], axis=1, keepdims=0))
        output = helper.make_tensor_value_info(ACTION, TensorProto.INT64, ["n"])
    else:
        graph.initializer.append(numpy_helper.from_array(np.array([-1, *action_shape], np.int64), "action_shape"))
        graph.node.append(helper.make_node("Reshape", [OUTPUT, "action_shape"], [ACTION]))
        output = helper.make_tensor_value_info(ACTION, TensorProto.FLOAT, ["n", *action_shape])
    del graph.output[:]
    graph.output.append(output)
    standard = [each for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if all(node.domain in ("", "ai.onnx") for node in graph.node):
        del model.opset_import[:]
        model.opset_import.extend(standard)


def _halve(model: ModelProto) -> None:
    """Store the weights as 16-bit floats and widen them in the graph, as the engine does."""
    graph = model.graph
    for initializer in [each for each in graph.initializer if each.name.startswith("weight")]:
        values = numpy_helper.to_array(initializer).astype(np.float16)
        graph.initializer.remove(initializer)
        graph.initializer.append(numpy_helper.from_array(values, f"{initializer.name}_half"))
        widen = helper.make_node("Cast", [f"{initializer.name}_half"], [initializer.name], to=TensorProto.FLOAT)
        graph.node.insert(0, widen)
