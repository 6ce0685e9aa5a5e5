"""What does a trained policy lose when its weights and activations are quantized after training? (Table 2)"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from quarl_lib import metrics
from quarl_lib.envs import disturbed
from quarl_lib.inference.spec import PRECISIONS
from quarl_lib.quantization.ptq import OBSERVATIONS
from quarl_lib.quantization.quantizers import precision_bits, quantizer_named, storage_bits
from quarl_lib.results import Progress, no_progress
from quarl_lib.sb3 import AgentFile, content_hash
from quarl_lib.studies.common.agents import choose_agents
from quarl_lib.studies.common.pool import map_tasks
from quarl_lib.studies.ptq_study import paper_table2
from quarl_lib.studies.ptq_study.cells import RANDOM, UNDISTURBED, PTQCell, lost, measure

CELL = ["algorithm", "env_id", "agent", "precision", "quantizer", "observation"]
TABLE_COLUMNS = (
    *CELL, "engine", "disturbance", "episode", "seed", "episode_return", "episode_length", "kl_divergence", "kl_kind",
    "same_action_rate", "mean_abs_action_difference", "normalisation", "trained_on", "warning", "agent_hash", "error",
)  # fmt: skip
SUMMARY_COLUMNS = (
    "algorithm", "env_id", "agent", "precision", "quantizer", "observation", "num_bits", "episodes",
    "mean_return", "ci_low", "ci_high", "relative_error", "relative_error_low", "relative_error_high",
    "paired_difference", "paired_ci_low", "paired_ci_high", "differs", "without_loss", "kl_divergence", "kl_kind",
    "same_action_rate", "mean_abs_action_difference", "paper_return", "paper_kl", "normalisation",
    "trained_on", "warning", "error",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """Parameters of the PTQ study; the defaults are those of the smoke preset."""

    # which agents: a folder <algorithm>/<environment>/ ("": those in the package); empty lists let all pass
    agents_dir: str = ""
    import_modules: list[str] = field(default_factory=list)
    run_pickles: bool = False
    algorithms: list[str] = field(default_factory=list)
    env_ids: list[str] = field(default_factory=list)
    retrain: bool = False
    # which cells: every precision under every quantizer; further treatments of the observation under the first one
    precisions: list[str] = field(default_factory=lambda: ["fp32", "fp16", "int8", "int4", "int2"])
    quantizers: list[str] = field(default_factory=lambda: ["paper", "symmetric_per_channel"])
    observation_quantization: list[str] = field(default_factory=lambda: ["none"])
    per_channel: bool = False
    engines: list[str] = field(default_factory=lambda: ["simulated", "native"])
    # each precision under the first quantizer again: <kind>=<level>, see envs/disturbed.py
    disturbances: list[str] = field(default_factory=lambda: ["observation_noise=0.1"])
    # how each is measured
    episodes: int = 10
    calibration_steps: int = 1000
    kl_states: int = 1000
    deterministic_std: float = 0.1
    confidence: float = 0.95
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("precisions", "quantizers", "observation_quantization"):
            if not getattr(self, name):
                raise ValueError(f"{name}=[]: name at least one")
        for precision in self.precisions:
            precision_bits(precision)
        for quantizer in self.quantizers:
            quantizer_named(quantizer)
        names = [disturbed.parse(text).name for text in self.disturbances]
        if len(set(names)) < len(names):
            raise ValueError(f"disturbances={self.disturbances}: one of them stands there twice")
        for kind in self.observation_quantization:
            if kind not in OBSERVATIONS:
                raise ValueError(f"observation_quantization={kind!r}: choose among {', '.join(OBSERVATIONS)}")
        for name, least in {"episodes": 2, "calibration_steps": 1, "kl_states": 1, "workers": 0, "seed": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give at least {least}")
        if not self.deterministic_std > 0:
            raise ValueError(f"deterministic_std={self.deterministic_std}: give a positive share of half the range")
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence={self.confidence}: give a share between 0 and 1, such as 0.95")
        if not self.engines or self.engines[0] != "simulated" or set(self.engines) - {"simulated", "native"}:
            raise ValueError(f"engines={self.engines}: give simulated, to which all is compared, and native after it")
        if "fp32" not in self.precisions:
            raise ValueError(f"precisions={self.precisions}: add fp32, to which every other one is compared")


def cells_of(config: Config) -> list[tuple[str, str | None, str]]:
    """Return (precision, quantizer, observation) of every cell of one agent.

    fp32 knows neither quantizer nor treatment, fp16 no quantizer; the treatments after the first are measured under the
    first quantizer only.
    """
    quantizers, treatments = config.quantizers, config.observation_quantization
    cells: list[tuple[str, str | None, str]] = []
    for precision in config.precisions:
        if precision == "fp32":
            cells.append((precision, None, "none"))
        elif precision == "fp16":
            cells.append((precision, None, treatments[0]))
        else:
            cells += [(precision, quantizer, treatments[0]) for quantizer in quantizers]
            cells += [(precision, quantizers[0], treatment) for treatment in treatments[1:]]
    return list(dict.fromkeys(cells))


def tasks_of(files: list[AgentFile], config: Config) -> list[PTQCell]:
    """Return every cell of these agents."""
    tasks = [
        PTQCell(
            file, *cell, config.per_channel, config.episodes, config.calibration_steps, config.kl_states,
            config.deterministic_std, config.seed,
        )
        for file in files
        for cell in cells_of(config)
    ]  # fmt: skip
    tasks = [*tasks, *_other_engines(tasks, config), *_disturbed(tasks, config)]
    return sorted(tasks, key=lambda task: files.index(task.file))  # a process prepares an agent once for all cells


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Measure every agent in every cell and return one row per episode, the same seeds in each cell.

    An agent that cannot be loaded is one row of precision "none" with the reason in `error`.
    """
    files, failures = choose_agents(
        config.agents_dir, config.algorithms, config.env_ids, config.retrain, config.seed, progress,
        config.import_modules, config.run_pickles,
    )  # fmt: skip
    tasks = tasks_of(files, config)
    hashes = {file: content_hash(file) for file in files}  # by which other commands find an agent's returns
    tables = map_tasks(measure, tasks, config.workers, progress, lambda task: task.name, lost)
    tables = [table.assign(agent_hash=hashes[task.file]) for task, table in zip(tasks, tables, strict=True)]
    refused = {task.file: table for task, table in zip(tasks, tables, strict=True) if (table.precision == "none").all()}
    measured = [table for task, table in zip(tasks, tables, strict=True) if task.file not in refused]
    untrained = pd.DataFrame([failure.row() for failure in failures])
    table = pd.concat([*measured, *refused.values(), untrained], ignore_index=True).reindex(columns=list(TABLE_COLUMNS))
    texts = dict.fromkeys(("error", "warning", "kl_kind", "normalisation", "trained_on", "agent_hash"), "")
    return table.fillna({**texts, "engine": "simulated", "disturbance": UNDISTURBED})


def _other_engines(tasks: list[PTQCell], config: Config) -> list[PTQCell]:
    """Return each agent's cell of random actions, and its cells on the native engine."""
    plain = {task.file: replace(task, quantizer=None, observation="none") for task in tasks}
    # One for each agent: the only one of an environment might be that of an agent that is refused.
    cells = [replace(task, precision="fp32", engine="random") for task in plain.values()]
    if "native" in config.engines:
        precisions = [precision for precision in config.precisions if precision in PRECISIONS]
        cells += [replace(task, precision=p, engine="native") for task in plain.values() for p in precisions]
    return cells


def _disturbed(tasks: list[PTQCell], config: Config) -> list[PTQCell]:
    """Return each agent's cells under disturbances: every precision under the first quantizer and treatment."""
    quantizers, observation = (None, config.quantizers[0]), config.observation_quantization[0]
    again = [
        task
        for task in tasks
        if task.precision == "fp32" or (task.quantizer in quantizers and task.observation == observation)
    ]
    return [replace(task, disturbance=disturbed.parse(text).name) for text in config.disturbances for task in again]


def summarize(table: pd.DataFrame, confidence: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Return one row per simulated cell: return, difference to fp32 paired by seed, divergence, the paper's values.

    Without loss means not inferior: the lower end of the difference's interval lies above -5 % of the range from a
    random policy to fp32. Cells under disturbances are `robustness`'s.
    """
    random = table[table.engine == RANDOM].groupby("env_id").episode_return.mean()
    table = table[(table.engine == "simulated") & (table.disturbance == UNDISTURBED)]
    reference = {
        agent: rows.set_index("seed").episode_return
        for agent, rows in table[(table.precision == "fp32") & (table.error == "")].groupby("agent")
    }
    rows = []
    for key, episodes in table.groupby(CELL, sort=False):
        cell = dict(zip(CELL, key, strict=True))
        first = episodes.iloc[0]
        row = {
            **cell,
            "warning": first.warning,
            "error": first.error,
            "episodes": 0,
            "differs": False,
            "without_loss": False,
        }
        row |= {"normalisation": first.normalisation, "trained_on": first.trained_on}
        if not first.error:
            returns = episodes.set_index("seed").episode_return
            fp32 = reference.get(cell["agent"])
            row |= against_fp32(returns, fp32, confidence, seed)
            if fp32 is not None:
                floor = random.get(cell["env_id"], float("nan"))
                row["without_loss"] = metrics.not_inferior(row["paired_ci_low"], float(fp32.mean()), floor)
            row |= first[["kl_divergence", "kl_kind", "same_action_rate", "mean_abs_action_difference"]].to_dict()
        if cell["precision"] != "none":
            row["num_bits"] = storage_bits(cell["precision"])
        row["paper_return"], row["paper_kl"] = paper_table2.values_for(
            cell["algorithm"], cell["env_id"], cell["precision"], cell["quantizer"]
        )
        rows.append(row)
    return pd.DataFrame(rows).reindex(columns=list(SUMMARY_COLUMNS))


def against_fp32(
    returns: pd.Series, reference: pd.Series | None, confidence: float, seed: int
) -> dict[str, float | bool]:
    """Return a cell's mean return and what it loses against fp32's returns, both indexed by episode seed."""
    mean = metrics.mean_interval(returns, confidence, seed)
    if reference is None:  # fp32 could not be played: there is nothing to compare with
        return {"episodes": len(returns), "mean_return": mean.estimate, "ci_low": mean.low, "ci_high": mean.high}
    paired = metrics.paired_difference(returns, reference, confidence, seed)
    scale = abs(float(reference.mean())) or float("nan")
    return {
        "episodes": len(returns),
        "mean_return": mean.estimate,
        "ci_low": mean.low,
        "ci_high": mean.high,
        "relative_error": metrics.relative_error(mean.estimate, float(reference.mean())),
        "relative_error_low": (0.0 - paired.high) / scale,
        "relative_error_high": (0.0 - paired.low) / scale,
        "paired_difference": paired.estimate,
        "paired_ci_low": paired.low,
        "paired_ci_high": paired.high,
        "differs": paired.low > 0 or paired.high < 0,
    }
