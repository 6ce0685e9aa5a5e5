"""Microseconds an action of one agent: as it is, in other people's runtimes, and on our engines; timed in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from quarl_lib import metrics
from quarl_lib.deploy import parity
from quarl_lib.deploy.policy import QuantizedPolicy
from quarl_lib.deploy.source import Source, read_source
from quarl_lib.inference.backends.torch import TorchEngine
from quarl_lib.inference.benchmark import Pair, Schedule, paired
from quarl_lib.inference.engines import make_engine
from quarl_lib.inference.pack import pack
from quarl_lib.inference.spec import PRECISIONS
from quarl_lib.sb3.archive import AgentError

SB3 = "model.predict"
ORIGINAL = "torch module, as Stable-Baselines3"
OBSERVATIONS = 1000
COLUMNS = (
    "name", "microseconds", "us_low", "us_high", "speedup", "speedup_low", "speedup_high", "same_action_rate",
    "max_abs_difference", "mean_abs_difference", "reason",
)  # fmt: skip
Act = Callable[[np.ndarray], Any]


def bench(model_or_path: Any, *, rounds: int = 10, env_id: str | None = None) -> pd.DataFrame:
    """Return one row a way to act: microseconds for one observation and speedup over the first row, with intervals.

    Actions are compared with the original's on observations that it met. What cannot run here has its `reason`.

    Raises:
        ValueError: rounds below 2, or no engine takes the agent.
    """
    if rounds < 2:
        raise ValueError(f"rounds={rounds}: an interval needs at least 2")
    source = read_source(model_or_path, env_id=env_id)
    met = parity.play_original(source.agent).observations
    observations = met[np.linspace(0, len(met) - 1, OBSERVATIONS).astype(int)]
    ways, reasons = _ways(source, model_or_path)
    singles = _singles(observations, source)
    calls = {name: _cycle(act, singles if name != SB3 else list(observations)) for name, act in ways.items()}
    baseline = SB3 if SB3 in calls else ORIGINAL
    pairs = paired(calls, calls[baseline], Schedule(rounds=rounds), np.random.default_rng(0))
    original = parity.original_actions(source.agent, observations)
    rows = [_row(name, act, singles, observations, original, pairs, source) for name, act in ways.items()]
    rows += [{"name": name, "reason": reason} for name, reason in reasons.items()]
    return pd.DataFrame(rows).reindex(columns=list(COLUMNS)).fillna({"reason": ""})


def _ways(source: Source, model_or_path: Any) -> tuple[dict[str, Act], dict[str, str]]:
    """Return every way to act that works here, by name, and why the others do not."""
    spec, weights, agent = source.spec, source.weights, source.agent
    ways: dict[str, Act] = {}
    reasons: dict[str, str] = {}
    predict = _predict(source, model_or_path)
    if isinstance(predict, str):
        reasons[SB3] = predict
    else:
        ways[SB3] = predict
    ways[ORIGINAL] = lambda x: agent.policy.act(agent.normalize(x[None]))[0]
    frozen = TorchEngine(spec, "fp32", frozen=True)
    frozen.set_weights(weights)
    ways["TorchScript, frozen"] = frozen
    for backend, precisions in (("onnxruntime", ("fp32", "int8")), ("native", PRECISIONS)):
        for precision in precisions:
            name = f"{backend} {precision}"
            try:
                engine = make_engine(spec, precision, backend)
                engine.load(pack(spec, weights, precision), copy=True)
                ways[name] = engine
            except ValueError as error:
                reasons[name] = str(error)
    precision = source.trained_at or "int8"
    policy = QuantizedPolicy.of_source(source, precision)
    ways[f"QuantizedPolicy.predict {precision}"] = lambda x: policy.predict(x)[0]
    return ways, reasons


def _predict(source: Source, model_or_path: Any) -> Act | str:
    """Return Stable-Baselines3's own `predict`, normalisation before it where the agent has one, or why not."""
    from quarl_lib.deploy.source import find_agent
    from quarl_lib.sb3.rebuild import rebuild_model
    from quarl_lib.sb3.tuning import SMALL, training_env

    agent = source.agent
    if hasattr(model_or_path, "predict"):
        model = model_or_path
    else:
        file = model_or_path if hasattr(model_or_path, "layout") else find_agent(model_or_path, agent.env_id)
        if file.layout != "sb3":
            return "the agent is plain arrays, no Stable-Baselines3 model"
        env = training_env(agent, None)
        try:
            small = SMALL.get(file.algorithm, {"buffer_size": 1})
            model = rebuild_model(file.path, file.algorithm, env, hyperparameters=small)
        except AgentError as error:
            return str(error)
        finally:
            env.close()
    if agent.normalization is None:
        return lambda x: model.predict(x, deterministic=True)[0]
    statistics = agent.normalization
    return lambda x: model.predict(statistics(x), deterministic=True)[0]


def _singles(observations: np.ndarray, source: Source) -> list[np.ndarray]:
    dtype = np.uint8 if source.spec.conv else np.float32
    return [np.ascontiguousarray(row.reshape(source.spec.observation_shape), dtype) for row in observations]


def _cycle(act: Act, observations: list[np.ndarray]) -> Callable[[], object]:
    """Return a call that acts on the next observation, as a robot meets them."""
    state = {"next": 0}
    count = len(observations)

    def call() -> object:
        index = state["next"] = (state["next"] + 1) % count
        return act(observations[index])

    return call


def _row(
    name: str, act: Act, singles: list[np.ndarray], observations: np.ndarray, original: np.ndarray, pairs: list[Pair],
    source: Source,
) -> dict[str, Any]:  # fmt: skip
    own = [pair for pair in pairs if pair.name == name]
    times, base = [p.candidate.median_us for p in own], [p.baseline.median_us for p in own]
    us, ratio = metrics.mean_interval(times), metrics.paired_ratio(base, times)
    inputs = list(observations) if name == SB3 else singles
    actions = np.stack([np.asarray(act(x)) for x in inputs]).reshape(original.shape)
    found = parity.difference(original, actions, source.agent)
    return {
        "name": name, "microseconds": us.estimate, "us_low": us.low, "us_high": us.high, "speedup": ratio.estimate,
        "speedup_low": ratio.low, "speedup_high": ratio.high, **dataclasses.asdict(found),
    }  # fmt: skip
