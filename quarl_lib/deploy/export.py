"""Take a policy out of the house: write the file and its card, after seeing that it acts as it should."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from quarl_lib.deploy import parity
from quarl_lib.deploy.policy import QuantizedPolicy
from quarl_lib.deploy.source import Source, read_source
from quarl_lib.files import write_atomically
from quarl_lib.inference.pack import check_precision, pack

TARGETS = ("onnx", "c", "policy")
ROUNDS, CALLS = 7, 300
MOST_DEVIATIONS = 50.0  # between zero and a mean: observations in float32 then err by 3e-6 deviations


def export(
    model_or_path: Any,
    to: str,
    output: str | Path,
    precision: str = "int8",
    *,
    vec_normalize: Any = None,
    env_id: str | None = None,
) -> dict[str, Any]:
    """Write `output` (for C its header too) and its card `<output>.json`; return the card.

    What the card says of parity and time is measured here, by running the file. If anything fails, nothing is left.

    Raises:
        ValueError: the target does not do this policy or precision, or the file acts otherwise than the engine.
        AgentError: the agent cannot be loaded.
    """
    output = Path(output)
    if to not in TARGETS:
        raise ValueError(f"to={to!r}: choose one of {', '.join(TARGETS)}")
    if to == "c" and output.suffix != ".c":
        raise ValueError(f"output={str(output)!r}: a C export is named .c, and its header lies beside it")
    if not output.parent.is_dir():
        raise ValueError(f"output={str(output)!r}: the folder {output.parent} does not exist")
    check_precision(precision)
    source = read_source(model_or_path, vec_normalize=vec_normalize, env_id=env_id)
    if not source.agent.env_id:
        raise ValueError("env_id is missing: parity is measured in the policy's environment; name it")
    if to != "policy":
        _check_float32(source)
    policy = QuantizedPolicy.of_source(source, precision)
    candidate = {"onnx": _onnx, "c": _c, "policy": _policy}[to](policy, source, output)
    original = parity.play_original(source.agent)
    engine = _engine_act(policy)
    policy.card |= {
        "kind": to,
        **candidate.sizes,
        "parity": parity.measure(source, original, candidate.act, engine, precision),
        "timing": candidate.times(original.observations[:CALLS]),
    }
    files = candidate.files()
    files[output.with_name(f"{output.name}.json")] = json.dumps(policy.card, indent=1).encode() + b"\n"
    _write_all(files)
    return policy.card


def _check_float32(source: Source) -> None:
    """Raise ValueError where float32, in which these files take observations, loses what a deviation tells."""
    statistics, space = source.agent.normalization, source.agent.observation_space
    if statistics is None or space.dtype in (np.float32, np.float16) or np.dtype(space.dtype or float).itemsize < 3:
        return  # the environment's own observations are no finer
    steps = np.abs(statistics.mean) / statistics.std
    worst = int(steps.argmax())
    if steps.flat[worst] > MOST_DEVIATIONS:
        raise ValueError(
            f"{source.agent.name}: feature {worst} has a mean of {statistics.mean.flat[worst]:.3g} and a deviation of "
            f"{statistics.std.flat[worst]:.3g}: the file would take observations in float32, which is too coarse for "
            f"that; export it as a policy"
        )


class ExportedFile:
    """An export that is not yet written: what it does, its sizes, times, and its files with the finished card."""

    def __init__(
        self,
        act: parity.BatchAct,
        sizes: dict[str, Any],
        times: Callable[[np.ndarray], dict[str, Any]],
        files: Callable[[], dict[Path, bytes]],
    ) -> None:
        self.act, self.sizes, self.times, self.files = act, sizes, times, files


def _policy(policy: QuantizedPolicy, source: Source, output: Path) -> ExportedFile:
    loaded = QuantizedPolicy.from_bytes(policy.to_bytes(), output.name)
    engine = loaded.engine

    def times(observations: np.ndarray) -> dict[str, Any]:
        return in_turn({
            "predict_us": lambda: _one_by_one(loaded.predict, observations),
            "engine_us": lambda: _one_by_one(engine, _flat(observations, loaded)),
        })  # fmt: skip

    return ExportedFile(lambda x: loaded.predict(x)[0], {}, times, lambda: {output: policy.to_bytes()})


def _onnx(policy: QuantizedPolicy, source: Source, output: Path) -> ExportedFile:
    try:
        from quarl_lib.deploy import onnx as target
    except ImportError as error:
        raise ValueError(f"ONNX cannot be imported ({error}); pip install onnx onnxruntime") from error

    spec, precision = policy.spec, policy.precision
    model = target.build_onnx(spec, policy.packed, precision, policy.action_shape)
    exported = target.OnnxPolicy(model.SerializeToString())

    def act(observations: np.ndarray) -> np.ndarray:
        # One at a time and eight at a time in turn, so that parity sees both.
        batch = _flat(observations, policy)
        cuts = np.cumsum([size for _ in range(-(-len(batch) // 9)) for size in (1, 8)])
        parts = np.split(batch, cuts[cuts < len(batch)])
        return np.concatenate([exported(part) for part in parts])

    def times(observations: np.ndarray) -> dict[str, Any]:
        singles = [row[None] for row in _flat(observations, policy)]
        return in_turn({
            "onnxruntime_us": lambda: _one_by_one(exported, singles),
            "engine_us": lambda: _one_by_one(policy.engine, _flat(observations, policy)),
        })  # fmt: skip

    sizes = {"opset": target.OPSET, "payload_bytes": sum(len(c.raw_data) for c in model.graph.initializer)}
    return ExportedFile(act, sizes, times, lambda: {output: target.add_card(model, policy.card)})


def _c(policy: QuantizedPolicy, source: Source, output: Path) -> ExportedFile:
    from quarl_lib.deploy import c_build, c_source

    spec, name = policy.spec, c_source.identifier(output.stem)
    if name != output.stem:
        raise ValueError(f"output={output.name!r}: functions take the file's name; call it {name}.c")

    def written(buffer: object, precision: str) -> c_source.CSource:
        return c_source.write_c(spec, buffer, precision, name, _about(policy))

    code = written(policy.packed, policy.precision)
    compiled = c_build.CompiledPolicy(code, spec.head.discrete, spec.action_dim)

    def times(observations: np.ndarray) -> dict[str, Any]:
        batch = _flat(observations, policy)
        fp32 = c_build.CompiledPolicy(
            written(pack(spec, source.weights, "fp32"), "fp32"), spec.head.discrete, spec.action_dim
        )
        return in_turn({
            "c_us": lambda: compiled.microseconds(batch),
            "c_fp32_us": lambda: fp32.microseconds(batch),
            "engine_us": lambda: _one_by_one(policy.engine, batch),
        })  # fmt: skip

    def files() -> dict[Path, bytes]:
        final = c_source.write_c(spec, policy.packed, policy.precision, name, [*_about(policy), *_measured(policy)])
        return {output: final.source.encode(), output.with_suffix(".h"): final.header.encode()}

    sizes = {"payload_bytes": code.constant_bytes, "ram_bytes": code.ram_bytes}
    return ExportedFile(lambda x: compiled(_flat(x, policy)), sizes, times, files)


def in_turn(runs: dict[str, Callable[[], float]]) -> dict[str, Any]:
    """Time runs in turn, round by round; return each one's median with its lowest and highest round."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            seen[name].append(run())
    return {
        name: {"median": float(np.median(times)), "low": min(times), "high": max(times)} for name, times in seen.items()
    }


def _one_by_one(act: Callable[[Any], Any], observations: Any) -> float:
    """Return microseconds a call."""
    begin = perf_counter()
    for observation in observations:
        act(observation)
    return (perf_counter() - begin) / len(observations) * 1e6


def _flat(observations: np.ndarray, policy: QuantizedPolicy) -> np.ndarray:
    """Return observations as the exported file takes them: float32 [n, obs], or uint8 images."""
    batch = observations.reshape(-1, *policy.spec.observation_shape)
    return np.ascontiguousarray(batch if policy.spec.conv else batch.astype(np.float32))


def _engine_act(policy: QuantizedPolicy) -> parity.BatchAct:
    return lambda observations: np.asarray(policy.engine(_flat(observations, policy)))


def _about(policy: QuantizedPolicy) -> list[str]:
    card = policy.card
    return [f"{card['algorithm']} on {card['env_id']}, {card['precision']}, from {card['source']}",
            f"by quarl_lib {card['library_version']}"]  # fmt: skip


def _measured(policy: QuantizedPolicy) -> list[str]:
    found = policy.card["parity"]
    rate = f"{found['same_action_rate']:.4f} of {found['observations']} actions are the original's"
    return [f"{rate}; mean return {found['mean_return_exported']:.4g}, original {found['mean_return_original']:.4g}"]


def _put(data: bytes, path: Path) -> None:
    path.write_bytes(data)


def _write_all(files: dict[Path, bytes]) -> None:
    """Write every file, or none."""
    done: list[Path] = []
    try:
        for path, data in files.items():
            write_atomically(path, partial(_put, data))
            done.append(path)
    except BaseException:
        for path in done:
            path.unlink(missing_ok=True)
        raise
