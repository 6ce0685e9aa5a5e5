"""How fast can a policy act at each precision, on each engine, and how close is that to the memory's limit?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from quarl_lib.inference import BACKENDS
from quarl_lib.inference.benchmark import Schedule, one_thread
from quarl_lib.inference.example_policies import check_policy_name, example_policy
from quarl_lib.metrics import paired_ratio
from quarl_lib.results import Progress, no_progress
from quarl_lib.studies.common.checks import check_each_once
from quarl_lib.studies.inference_engines import cells
from quarl_lib.studies.inference_engines.cells import BASELINE, FROZEN

SUMMARY_COLUMNS = (
    "policy", "backend", "precision", "regime", "batch", "us_median", "us_min",
    "ratio_to_torch_fp32", "ratio_ci_low", "ratio_ci_high", "ratio_to_best_fp32", "limit_us", "over_limit",
    "mean_relative_error", "max_abs_error", "payload_bytes", "pack_ms", "load_ms", "update_ms", "load_in_place_ms",
    "load_ratio", "load_ratio_low", "load_ratio_high",
)  # fmt: skip
STEPS = 5  # of progress per policy: prepare, time, batches, errors, updates


@dataclass(frozen=True)
class Config:
    """What to measure, how often, and on which engines."""

    policies: list[str] = field(default_factory=lambda: ["24-2048x3-6", "24-512x3-6", "4-64x64-2", "nature-cnn"])
    backends: list[str] = field(default_factory=lambda: ["native", "onnxruntime", "torch", FROZEN, "numpy"])
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8, 64])
    rounds: int = 4
    calls_per_block: int = 6
    block_ms: float = 6.0
    cold_megabytes: float = 16.0
    update_repeats: int = 2
    error_observations: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        known = (*BACKENDS, FROZEN)
        for backend in self.backends:
            if backend not in known:
                raise ValueError(f"backends has {backend!r}: choose among {', '.join(known)}")
        if BASELINE[0] not in self.backends:
            raise ValueError(f"backends={self.backends}: leave torch in, every ratio is taken to its fp32")
        check_each_once("policies", self.policies)
        for policy in self.policies:
            check_policy_name(policy)
        check_each_once("batch_sizes", self.batch_sizes)
        if min(self.batch_sizes) < 1 or 1 not in self.batch_sizes:
            raise ValueError(f"batch_sizes={self.batch_sizes}: give 1, which all else is measured at, and larger ones")
        for name in ("rounds", "calls_per_block", "block_ms", "cold_megabytes", "update_repeats", "error_observations"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give a positive number")

    @property
    def schedule(self) -> Schedule:
        """Return how often each engine and torch fp32 take turns."""
        return Schedule(self.rounds, self.calls_per_block, self.block_ms)

    @property
    def batch_schedule(self) -> Schedule:
        """Return the same for batches: a call takes as long as many, so there are fewer rounds, at least three."""
        return Schedule(max(min(3, self.rounds), self.rounds // 3), self.calls_per_block, self.block_ms / 2)


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Measure every policy on every engine.

    Returns:
        One row per policy, backend, precision, regime, batch, round and quantity (us, us_best, torch_fp32_us, limit_us
        per round, all per action; errors, bytes and milliseconds of updates without regime), in `value`.
    """
    rng = np.random.default_rng(config.seed)
    rows: list[cells.Row] = []
    total = STEPS * len(config.policies)
    for number, name in enumerate(config.policies):
        done = STEPS * number
        progress(done, total, f"{name}: load")
        with one_thread():
            spec, weights = example_policy(name, config.seed)
            policy = cells.prepared(name, spec, weights, config.error_observations, rng)
            measured = cells.candidates(policy, config.backends)
            progress(done + 1, total, f"{name}: time {len(measured)} engines")
            rows += cells.action_rows(policy, measured, config.schedule, config.cold_megabytes, rng)
            for batch in [n for n in config.batch_sizes if n > 1 and not spec.conv]:
                progress(done + 2, total, f"{name}: batches of {batch}")
                rows += cells.batch_rows(policy, measured, config.batch_schedule, batch, rng)
            progress(done + 3, total, f"{name}: errors")
            rows += cells.error_rows(policy, measured)
            progress(done + 4, total, f"{name}: updates")
            rows += cells.update_rows(policy, measured, config.update_repeats)
    progress(total, total, "measured")
    return pd.DataFrame(rows)


def summarize(table: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Return one row per policy, backend, precision, regime and batch: medians, paired ratios with intervals, costs.

    A ratio is the geometric mean over rounds of torch fp32's time over the engine's, both of the same round; above 1
    is faster. `ratio_to_best_fp32` divides it by the best fp32 engine's ratio for that policy, regime and batch;
    `over_limit` is the engine's time over the limit's, `load_ratio` the time to load new weights over torch fp32's,
    likewise. Rows of batch 1 come first.
    """
    keys = ["policy", "backend", "precision"]
    which = [*keys, "regime", "batch"]
    timed = table[table.regime != ""].pivot(index=[*which, "round"], columns="quantity", values="value")
    costs = table[table.regime == ""].pivot_table(index=keys, columns="quantity", values="value", aggfunc="median")
    loads = table[table.quantity == "load_ms"].pivot(index=[*keys, "round"], columns="quantity", values="value").load_ms
    rows = []
    for key, rounds in timed.groupby(which, sort=False):
        load = pd.concat([loads.loc[key[:3]], loads.loc[(key[0], *BASELINE)]], axis=1, join="inner").to_numpy()
        load_ratio = paired_ratio(load[:, 0], load[:, 1], seed=seed)
        ratio = paired_ratio(rounds.torch_fp32_us, rounds.us, seed=seed)
        rows.append(
            {
                **dict(zip(which, key, strict=True)),
                "us_median": rounds.us.median(),
                "us_min": rounds.us_best.min(),
                "ratio_to_torch_fp32": ratio.estimate,
                "ratio_ci_low": ratio.low,
                "ratio_ci_high": ratio.high,
                "limit_us": rounds.limit_us.median(),
                "over_limit": paired_ratio(rounds.us, rounds.limit_us, seed=seed).estimate,
                **costs.loc[key[:3]].to_dict(),
                **dict(zip(("load_ratio", "load_ratio_low", "load_ratio_high"), load_ratio, strict=True)),
            }
        )
    summary = pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))
    alike = ["policy", "regime", "batch"]
    best = summary[summary.precision == "fp32"].groupby(alike).ratio_to_torch_fp32.max()
    of_row = best.loc[list(summary[alike].itertuples(index=False, name=None))].to_numpy()
    summary["ratio_to_best_fp32"] = summary.ratio_to_torch_fp32 / of_row
    summary["update_ms"] = summary.pack_ms + summary.load_ms
    order = {name: index for index, name in enumerate(dict.fromkeys(table.policy))}
    return summary.sort_values(
        ["policy", "batch", "regime", "us_median"],
        key=lambda c: c.map(order) if c.name == "policy" else c,
        ignore_index=True,
    )
