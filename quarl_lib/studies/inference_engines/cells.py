"""Measure one policy on every engine: time per action in pairs with torch fp32, error, and the cost of new weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from quarl_lib.inference import PRECISIONS, Engine, Head, PolicySpec, Weights, make_engine
from quarl_lib.inference.backends import torch as torch_backend
from quarl_lib.inference.benchmark import (
    Pair,
    Schedule,
    estimate_us,
    milliseconds,
    one_thread,
    paired,
    peak_products,
    reader,
    touch,
)
from quarl_lib.inference.engines import unsupported
from quarl_lib.inference.example_policies import example_observations
from quarl_lib.inference.pack import aligned_empty, pack, packed_size
from quarl_lib.inference.spec import WEIGHT_BITS

FROZEN = "torch-frozen"
BASELINE = ("torch", "fp32")
# The reference kernels in numpy exist to be right: two rows say how slow that is.
NUMPY_MEASURED = ("fp32", "int8")
BATCH_BACKENDS, BATCH_MEASURED = ("native", "onnxruntime", "torch"), ("fp32", "int8", "int4", "int2")
CALIBRATION_IMAGES = 32
OBSERVATIONS_IN_TURN = 16
SLOW_MS, SLOW_REPEATS = 60.0, 3  # an update slower than this is repeated no more often

Row = dict[str, object]


@dataclass(frozen=True)
class Policy:
    """A policy and the observations it is measured on."""

    name: str
    spec: PolicySpec
    weights: Weights
    observations: np.ndarray
    calibration: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Candidate:
    """One engine of one policy; `backend` is the label in the table."""

    backend: str
    precision: str
    engine: Engine

    @property
    def key(self) -> str:
        """Return a name that is unique within a policy."""
        return f"{self.backend} {self.precision}"


def prepared(name: str, spec: PolicySpec, weights: Weights, count: int, rng: np.random.Generator) -> Policy:
    """Return the policy with `count` observations, and others to calibrate on where it has convolutions."""
    calibration = example_observations(spec, CALIBRATION_IMAGES if spec.conv else 0, rng)
    return Policy(name, spec, weights, example_observations(spec, count, rng), calibration)


def candidates(policy: Policy, backends: list[str]) -> list[Candidate]:
    """Return a loaded engine for everything that these backends can run on this machine."""
    found = []
    for backend in backends:
        if backend == FROZEN:
            found.append(Candidate(FROZEN, "fp32", _loaded(policy, "fp32", FROZEN)))
            continue
        for precision in PRECISIONS:
            if backend == "numpy" and precision not in NUMPY_MEASURED:
                continue
            if unsupported(policy.spec, precision, backend) is None:
                found.append(Candidate(backend, precision, _loaded(policy, precision, backend)))
    return found


def action_rows(
    policy: Policy, measured: list[Candidate], schedule: Schedule, cold_megabytes: float, rng: np.random.Generator
) -> Iterator[Row]:
    """Yield the times per action, hot and cold, of every candidate, and the times that reading its weights takes."""
    baseline = _baseline(measured)
    calls = {candidate.key: _acting(candidate.engine, policy.observations) for candidate in measured}
    for bits in sorted({WEIGHT_BITS[candidate.precision] for candidate in measured}):
        calls[f"memory {bits}"] = reader(policy.spec.num_weights * bits // 8)
    for regime, before in (("hot", None), ("cold", touch(cold_megabytes))):
        pairs = paired(calls, _acting(baseline, policy.observations), schedule, rng, before)
        reads = {pair.name: [p for p in pairs if p.name == pair.name] for pair in pairs}
        for candidate in measured:
            limits = reads[f"memory {WEIGHT_BITS[candidate.precision]}"]
            for pair, limit in zip(reads[candidate.key], limits, strict=True):
                yield from _pair_rows(policy, candidate, regime, pair, limit.candidate.median_us)


def batch_rows(
    policy: Policy, measured: list[Candidate], schedule: Schedule, batch: int, rng: np.random.Generator
) -> Iterator[Row]:
    """Yield the hot times per action when `batch` observations go in at once, of the engines that batches are about.

    The limit is the roofline's: every weight read once a batch, or every product at the core's peak, what takes longer.
    """
    measured = [one for one in measured if one.backend in BATCH_BACKENDS and one.precision in BATCH_MEASURED]
    observations = np.resize(policy.observations, (batch, *policy.observations.shape[1:]))
    calls: dict[str, Callable[[], object]] = {one.key: partial(one.engine, observations) for one in measured}
    pairs = paired(calls, partial(_baseline(measured), observations), schedule, rng)
    for candidate in measured:
        peak = peak_products(candidate.precision.startswith("fp"))
        read_us = estimate_us(reader(policy.spec.num_weights * WEIGHT_BITS[candidate.precision] // 8))
        limit_us = max(read_us / batch, policy.spec.num_weights / peak if peak else 0.0)
        for pair in pairs:
            if pair.name == candidate.key:
                yield from _pair_rows(policy, candidate, "hot", pair, limit_us, batch)


def _acting(engine: Engine, observations: np.ndarray) -> Callable[[], object]:
    """Return a call that acts on the next observation, round and round.

    The same one again and again would keep branches predicted, and weights that it does not need out of the caches.
    """
    return map(engine, cycle(list(observations[:OBSERVATIONS_IN_TURN]))).__next__


def _baseline(measured: list[Candidate]) -> Engine:
    return next(one.engine for one in measured if (one.backend, one.precision) == BASELINE)


def _pair_rows(
    policy: Policy, candidate: Candidate, regime: str, pair: Pair, limit_us: float, batch: int = 1
) -> Iterator[Row]:
    values = {
        "us": pair.candidate.median_us / batch,
        "us_best": pair.candidate.best_us / batch,
        "torch_fp32_us": pair.baseline.median_us / batch,
        "limit_us": limit_us,
    }
    for quantity, value in values.items():
        yield _row(policy, candidate, quantity, value, regime, pair.round, batch)


def error_rows(policy: Policy, measured: list[Candidate]) -> Iterator[Row]:
    """Yield the errors of every candidate's actions against torch fp32; of its Q values where actions are indices.

    mean_relative_error = mean |action - fp32| / mean |fp32| over all observations and dimensions.
    """
    if policy.spec.head.discrete:
        policy = dataclasses.replace(policy, spec=dataclasses.replace(policy.spec, head=Head()))
        measured = [dataclasses.replace(c, engine=_loaded(policy, c.precision, c.backend)) for c in measured]
    exact = _baseline(measured)(policy.observations)
    for candidate in measured:
        error = np.abs(candidate.engine(policy.observations) - exact)
        yield _row(policy, candidate, "mean_relative_error", float(error.mean() / np.abs(exact).mean()))
        yield _row(policy, candidate, "max_abs_error", float(error.max()))


def update_rows(policy: Policy, measured: list[Candidate], repeats: int) -> Iterator[Row]:
    """Yield what new weights cost: quantize and pack at the learner, the message's bytes, load at the actor.

    The engines take turns, so that what slows the machine for a moment reaches one repeat of each at most.
    """
    with one_thread():
        ways = [_message(policy, candidate) for candidate in measured]
        messages = [make() for make, _ in ways]
        slow = set()
        for candidate, (_, load), message in zip(measured, ways, messages, strict=True):
            load(message)
            yield _row(policy, candidate, "payload_bytes", float(memoryview(message).nbytes))
        for repeat in range(repeats):
            for candidate, (make, load), message in zip(measured, ways, messages, strict=True):
                if candidate.key in slow and repeat >= SLOW_REPEATS:
                    continue
                spent = {"pack_ms": milliseconds(make), "load_ms": milliseconds(partial(load, message))}
                if candidate.backend == "native":
                    spent["load_in_place_ms"] = milliseconds(partial(candidate.engine.load, message))
                if sum(spent.values()) > SLOW_MS:
                    slow.add(candidate.key)
                for quantity, value in spent.items():
                    yield _row(policy, candidate, quantity, value, round_=repeat)


def _message(policy: Policy, candidate: Candidate) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return how a learner makes the message of this backend, and how an actor copies it into its engine."""
    spec, weights = policy.spec, policy.weights
    engine: Any = candidate.engine
    if candidate.backend in ("torch", FROZEN):
        learner = torch_backend.module_from_spec(spec, weights)
        return lambda: torch_backend.export(learner, candidate.precision), engine.load_export
    if candidate.backend == "onnxruntime":
        from quarl_lib.inference.backends import onnx as onnx_backend

        return lambda: onnx_backend.export(spec, weights, candidate.precision, engine.ranges), engine.load_export
    # Learners pack into a slot that they keep, such as shared memory.
    slot = aligned_empty(packed_size(spec, candidate.precision))
    return lambda: pack(spec, weights, candidate.precision, out=slot), lambda message: engine.load(message, copy=True)


def _loaded(policy: Policy, precision: str, backend: str) -> Engine:
    """Return an engine with the policy's weights; a runtime that quantizes for itself gets them in fp32."""
    spec = policy.spec
    frozen = torch_backend.TorchEngine(spec, precision, frozen=True) if backend == FROZEN else None
    engine: Any = frozen or make_engine(spec, precision, backend)
    if hasattr(engine, "set_weights"):
        engine.set_weights(policy.weights)
    else:
        engine.load(pack(spec, policy.weights, precision))
    if len(policy.calibration) and backend == "onnxruntime" and precision == "int8":
        engine.calibrate(policy.calibration)
    return engine


def _row(
    policy: Policy,
    candidate: Candidate,
    quantity: str,
    value: float,
    regime: str = "",
    round_: int = 0,
    batch: int = 1,
) -> Row:
    return {
        "policy": policy.name,
        "backend": candidate.backend,
        "precision": candidate.precision,
        "regime": regime,
        "batch": batch,
        "round": round_,
        "quantity": quantity,
        "value": value,
    }
