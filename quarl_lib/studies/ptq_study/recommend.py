"""Name per agent the cheapest precision whose paired interval keeps a share of fp32's return, played by its engine."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quarl_lib import metrics, provenance
from quarl_lib.files import read_json
from quarl_lib.inference.benchmark import estimate_us, one_thread
from quarl_lib.inference.engines import make_engine
from quarl_lib.inference.interface import Engine
from quarl_lib.inference.pack import pack, packed_size
from quarl_lib.inference.spec import PolicySpec, Weights
from quarl_lib.sb3 import AgentFile, content_hash, evaluate, find_agents, load_agent
from quarl_lib.sb3.spec import agent_spec, evaluate_engine
from quarl_lib.studies.ptq_study.cells import NATIVE, UNDISTURBED

TRIED = ("fp16", "int8", "int4", "int3", "int2")  # those that engines run; fp32 is what they are held against
EPISODES_SEED = 0
KEYS = ("name", "precision", "payload_bytes", "microseconds", "backend", "mean_return", "fp32_return", "paired_low",
        "retain", "episodes", "tried", "reused", "refused")  # fmt: skip


def recommend(
    agents_dir: str | Path,
    retain: float = 0.95,
    episodes: int = 30,
    import_modules: Sequence[str] = (),
    runs: Sequence[Path] = (),
) -> list[dict[str, Any]]:
    """Return a dictionary an agent, its keys `KEYS`: the cheapest precision in bytes that keeps `retain` of the return.

    A precision keeps it if the whole 95 % interval of its loss, paired by episode seed, lies within what may be lost;
    `precision` is "none" where none does, None where the agent is refused. Returns come from finished PTQ `runs`, the
    first that fits: the same files of the agent, the same code and versions, and as many episodes at least; what such
    a run has not measured is played. Microseconds are always measured here and now.

    Raises:
        ValueError: a parameter makes no sense, or the folder holds no agent.
    """
    if not 0 < retain <= 1:
        raise ValueError(f"retain={retain}: give a share of fp32's return, such as 0.95")
    if episodes < 2:
        raise ValueError(f"episodes={episodes}: give at least 2, an interval needs them")
    files = find_agents(agents_dir, import_modules=import_modules)
    fitting = [run for run in runs if _same_code(run)]
    return [dict.fromkeys(KEYS) | {"name": file.name, **_row(file, retain, episodes, fitting)} for file in files]


def line(row: dict[str, Any]) -> str:
    """Say one agent's recommendation."""
    if row["refused"] is not None:
        return f"{row['name']} refused: {row['refused']}"
    source = f"; returns from {row['reused']}" if row["reused"] else ""
    if row["precision"] == "none":
        tried = ", ".join(f"{precision} {mean:.4g}" for precision, mean in row["tried"].items())
        return f"{row['name']}: none keeps {row['retain']:.0%} of fp32's {row['fp32_return']:.4g} ({tried}){source}"
    return (
        f"{row['name']}: {row['precision']}, {row['payload_bytes']} bytes, {row['microseconds']:.1f} us "
        f"({row['backend']}); return {row['mean_return']:.4g}, fp32 {row['fp32_return']:.4g}, difference at least "
        f"{row['paired_low']:.3g} (95 %, {row['episodes']} paired episodes){source}"
    )


def _row(file: AgentFile, retain: float, episodes: int, runs: Sequence[Path]) -> dict[str, Any]:
    try:
        return _recommended(file, retain, episodes, runs)
    except Exception as error:  # one agent costs no other its line
        return {"refused": str(error)}


def _recommended(file: AgentFile, retain: float, episodes: int, runs: Sequence[Path]) -> dict[str, Any]:
    agent = load_agent(file)
    spec, weights = agent_spec(agent)
    run, known = next(_measured(content_hash(file), episodes, runs), (None, {}))
    fp32 = known.get("fp32")
    if fp32 is None:
        fp32 = _by_seed(evaluate(agent, agent.policy, episodes, EPISODES_SEED))
    mean = float(fp32.mean())
    tried: dict[str, float] = {}
    row = {"fp32_return": mean, "retain": retain, "episodes": len(fp32), "tried": tried, "reused": run}
    for precision, engine in _engines(spec, weights):
        returns = known.get(precision) if engine.backend == NATIVE else None
        if returns is None or not returns.index.equals(fp32.index):
            returns = _by_seed(evaluate_engine(agent, engine, len(fp32), int(fp32.index[0])))
        tried[precision] = float(returns.mean())
        low = metrics.paired_difference(returns, fp32).low
        if math.isfinite(low) and low >= -(1 - retain) * abs(mean):
            example = np.zeros(spec.observation_shape, np.uint8 if spec.conv else np.float32)
            with one_thread():
                microseconds = estimate_us(partial(engine, example))
            return row | {
                "precision": precision, "payload_bytes": packed_size(spec, precision), "microseconds": microseconds,
                "backend": engine.backend, "mean_return": float(returns.mean()), "paired_low": low,
            }  # fmt: skip
    return row | {"precision": "none"}


def _engines(spec: PolicySpec, weights: Weights) -> Iterator[tuple[str, Engine]]:
    """Yield what this machine runs, from the fewest bytes up."""
    for precision in sorted(TRIED, key=lambda name: packed_size(spec, name)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                engine = make_engine(spec, precision)
            except ValueError:
                continue  # no engine of this machine runs it
        engine.load(pack(spec, weights, precision))
        yield precision, engine


def _by_seed(table: pd.DataFrame) -> pd.Series:
    return table.set_index("seed").episode_return.sort_index()


def _same_code(run: Path) -> bool:
    """Say whether the code and the packages that measured a run are those of today."""
    about = read_json(run / "provenance.json")
    return (about.get("commit"), about.get("versions")) == (provenance.commit(), provenance.versions())


def _measured(content: str, episodes: int, runs: Sequence[Path]) -> Iterator[tuple[str, dict[str, pd.Series]]]:
    """Yield of each run with enough episodes of an agent its name and the returns by precision, fp32's simulated."""
    for run in runs:
        try:
            table = pd.read_parquet(run / "results.parquet")
            rows = table[(table.agent_hash == content) & (table.error == "") & (table.disturbance == UNDISTURBED)]
        except (OSError, ValueError, AttributeError):  # of an older version, or damaged
            continue
        simulated = rows[(rows.engine == "simulated") & (rows.precision == "fp32")]
        if not content or len(simulated) < episodes:
            continue
        native = rows[rows.engine == NATIVE]
        returns = {precision: _by_seed(played) for precision, played in native.groupby("precision")}
        yield str(run), {**returns, "fp32": _by_seed(simulated)}
