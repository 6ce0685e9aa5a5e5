"""Name per agent the cheapest precision whose paired interval keeps a share of fp32's return, played by its engine."""

from __future__ import annotations

import math
import warnings
from functools import partial
from pathlib import Path

import numpy as np

from quarl_lib import metrics
from quarl_lib.inference.benchmark import estimate_us, one_thread
from quarl_lib.inference.engines import make_engine
from quarl_lib.inference.pack import pack, packed_size
from quarl_lib.sb3 import AgentFile, evaluate, find_agents, load_agent
from quarl_lib.sb3.spec import agent_spec, evaluate_engine

TRIED = ("fp16", "int8", "int4", "int2")  # those that engines run; fp32 is what they are held against
EPISODES_SEED = 0


def recommend(
    agents_dir: str | Path, retain: float = 0.95, episodes: int = 30, import_modules: tuple[str, ...] = ()
) -> list[str]:
    """Return one line an agent: the cheapest precision in bytes that keeps `retain` of fp32's return, or "none".

    A precision keeps it if the whole 95 % interval of its loss, paired by episode seed, lies within what may be lost.

    Raises:
        ValueError: a parameter makes no sense, or the folder holds no agent.
    """
    if not 0 < retain <= 1:
        raise ValueError(f"retain={retain}: give a share of fp32's return, such as 0.95")
    if episodes < 2:
        raise ValueError(f"episodes={episodes}: give at least 2, an interval needs them")
    return [_line(file, retain, episodes) for file in find_agents(agents_dir, import_modules=import_modules)]


def _line(file: AgentFile, retain: float, episodes: int) -> str:
    try:
        return f"{file.name}: {_recommended(file, retain, episodes)}"
    except Exception as error:  # one agent costs no other its line
        return f"{file.name} refused: {error}"


def _recommended(file: AgentFile, retain: float, episodes: int) -> str:
    agent = load_agent(file)
    spec, weights = agent_spec(agent)
    fp32 = evaluate(agent, agent.policy, episodes, EPISODES_SEED).episode_return.to_numpy()
    example = np.zeros(spec.observation_shape, np.uint8 if spec.conv else np.float32)
    allowed = (1 - retain) * abs(float(fp32.mean()))
    tried = []
    for precision in sorted(TRIED, key=lambda name: packed_size(spec, name)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                engine = make_engine(spec, precision)
            except ValueError:
                continue  # no engine of this machine runs it
        engine.load(pack(spec, weights, precision))
        returns = evaluate_engine(agent, engine, episodes, EPISODES_SEED).episode_return.to_numpy()
        paired = metrics.paired_difference(returns, fp32)
        tried.append(f"{precision} {returns.mean():.4g}")
        if math.isfinite(paired.low) and paired.low >= -allowed:
            with one_thread():
                microseconds = estimate_us(partial(engine, example))
            return (
                f"{precision}, {packed_size(spec, precision)} bytes, {microseconds:.1f} us ({engine.backend}); return "
                f"{returns.mean():.4g}, fp32 {fp32.mean():.4g}, difference at least {paired.low:.3g} (95 %, {episodes} "
                f"paired episodes)"
            )
    return f"none keeps {retain:.0%} of fp32's {fp32.mean():.4g} ({', '.join(tried)})"
