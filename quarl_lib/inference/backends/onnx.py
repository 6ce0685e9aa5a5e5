"""onnxruntime as a backend: fp32, int8 (dynamic for MLPs, static for convolutions), int4 in groups of 128."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from quarl_lib.inference.backends.framework import FrameworkEngine
from quarl_lib.inference.backends.native import instruction_sets
from quarl_lib.inference.backends.onnx_graph import INPUT, OUTPUT, SUPPORTED, Range, build
from quarl_lib.inference.observations import ObservationCheck
from quarl_lib.inference.spec import PolicySpec, Weights

VNNI_KERNELS = ("avx512", "avxvnni")  # native kernels that run only where the CPU has such instructions
SILENT = 3  # errors only: warnings about unused constants say nothing to a user


def export(
    spec: PolicySpec, weights: Weights, precision: str, ranges: list[Range] | None = None, code_max: int | None = None
) -> bytes:
    """Return the ONNX file of a policy, quantized; what a learner would send to an onnxruntime actor.

    Raises:
        ValueError: there is no such graph at that precision.
    """
    reason = unsupported(spec, precision)
    if reason:
        raise ValueError(f"precision is {precision!r}: {reason}; choose one of {', '.join(SUPPORTED)}")
    code_max = code_max or weight_code_max()
    return build(spec, weights, precision, code_max=code_max, ranges=ranges, doubles=True).SerializeToString()


def weight_code_max() -> int:
    """Return 127 where this CPU multiplies and sums 8-bit integers exactly, else 63: one bit less cannot saturate."""
    return 127 if any(instruction_sets().get(name) == "ok" for name in VNNI_KERNELS) else 63


class OnnxEngine(FrameworkEngine):
    """A policy run by onnxruntime on one thread; a new session is built at every load."""

    backend = "onnxruntime"

    def __init__(self, spec: PolicySpec, precision: str, seed: int = 0) -> None:
        """Make an engine without weights."""
        super().__init__(spec, precision, seed)
        self.ranges: list[Range] | None = None
        self._session: Any = None
        self._weights: Weights | None = None

    def load_export(self, message: bytes, weights_version: int = 0) -> None:
        """Take a message of `export` as it is."""
        self._session, self._source = _session(message), None
        self.weights_version = weights_version

    def calibrate(self, observations: np.ndarray) -> None:
        """Fix every layer's input range to what real observations [n, ...] give, so that convolutions run in int8.

        Without it a convolutional int8 policy keeps its convolutions in fp32: exact, but slower. The ranges stay
        for later loads; calibrate again when the policy has changed a lot.

        Raises:
            ValueError: no weights are loaded, or the policy has no convolutions or is not int8.
        """
        if self._weights is None:
            raise ValueError(f"calibrate at {self.precision}: only a loaded convolutional int8 policy has ranges")
        self.ranges = input_ranges(self.spec, self._weights, observations)
        self._build(self._weights)

    def _options(self) -> dict[str, Any]:
        return {"ranges": self.ranges}

    def _build(self, weights: Weights) -> None:
        self._session = _session(export(self.spec, weights, self.precision, self.ranges))
        # Static quantization needs them again at `calibrate`; a dynamic graph never does.
        self._weights = weights if self.spec.conv and self.precision == "int8" else None

    def _outputs(self, batch: np.ndarray) -> np.ndarray:
        if self.spec.normalize_observation:
            batch = batch.astype(np.float64, copy=False)
        return self._session.run([OUTPUT], {INPUT: batch})[0]


def unsupported(spec: PolicySpec, precision: str) -> str | None:
    """Return why onnxruntime cannot run this policy at this precision here, None if it can."""
    if precision not in SUPPORTED:
        return f"no kernels for {precision}"
    if spec.conv and precision == "int4g128":
        return "int4g128 is for linear layers only"
    return None


def create(spec: PolicySpec, precision: str, seed: int) -> OnnxEngine:
    """Return an engine without weights."""
    return OnnxEngine(spec, precision, seed)


def input_ranges(spec: PolicySpec, weights: Weights, observations: np.ndarray) -> list[Range]:
    """Return the lowest and highest value that each layer's input takes on `observations`, at fp32."""
    batch, _ = ObservationCheck(spec)(observations)
    session = _session(build(spec, weights, "fp32", taps=True).SerializeToString())
    taps = [output.name for output in session.get_outputs()][1:]
    return [(float(tap.min()), float(tap.max())) for tap in session.run(taps, {INPUT: batch})]


def _session(message: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = SILENT
    return ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
