"""How few bits does a policy need if it is trained with them? (Appendix A, Figure 10)"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from quarl_lib.envs.gym import current_name
from quarl_lib.results import PROJECT, Progress, no_progress
from quarl_lib.sb3 import SHIPPED_AGENTS, AgentError, AgentFile, find_agents
from quarl_lib.sb3.qat_policies import POLICIES
from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.sb3.tuning import check_tunable
from quarl_lib.studies.common.pool import map_tasks
from quarl_lib.studies.qat_bit_sweep.bits import FP32, Bits, fewest
from quarl_lib.studies.qat_bit_sweep.cells import (
    QATCell,
    digest_of_sources,
    measure,
    read,
    read_levels,
    versions_of_libraries,
)
from quarl_lib.studies.qat_bit_sweep.summary import METHODS, SCRATCH, TUNED, TWIN
from quarl_lib.studies.qat_bit_sweep.variants import check, vary_bits

SHIPPED = "shipped"


@dataclass(frozen=True)
class Config:
    """Parameters of the bit sweep; the defaults are those of the smoke preset."""

    # which agents: algorithm/environment/actor steps (0: the recipe's own); without steps nothing trains from scratch
    agents: list[str] = field(default_factory=lambda: ["PPO/CartPole-v1/4000"])
    # the folder of trained agents that are rounded and fine-tuned ("shipped": the package's; "": trained here)
    start_from: str = SHIPPED
    seeds: list[int] = field(default_factory=lambda: [0, 1])
    # at how many bits: "int4" (an engine's), or "4", "4/8/16" (weights/activations/observation), "4/8/16/8" (and edges)
    bits: list[str] = field(default_factory=lambda: ["4", "int4", "int2"])
    methods: list[str] = field(default_factory=lambda: ["qat", "fine_tune"])
    # what else is tried with the first agent that trains from scratch, at the fewest bits, each beside "qat" without it
    variants: list[str] = field(default_factory=list)
    delay_share: float = 0.5
    fine_tune_steps: int = 2000
    # how it is measured
    episodes: int = 10
    calibration_steps: int = 1000
    tolerated_loss: float = 0.05
    # where finished cells are kept ("": outputs/cells), and on how many processes (0: one a core)
    cells_dir: str = ""
    workers: int = 0

    def __post_init__(self) -> None:
        for name in ("seeds", "bits", "methods", *(() if self.start_from else ("agents",))):
            if not getattr(self, name):
                raise ValueError(f"{name}=[]: name at least one")
        for method in self.methods:
            if method not in METHODS:
                raise ValueError(f"methods={method!r}: choose among {', '.join(METHODS)}; ptq is always there")
        for text in self.bits:
            bits = Bits.parse(text)
            if bits == FP32:
                raise ValueError(f"bits={text!r}: fp32 is always among the methods")
        if not 0 <= self.delay_share <= 1:
            raise ValueError(f"delay_share={self.delay_share}: the delay ends within training; give 0 to 1")
        if not 0 <= self.tolerated_loss < 1:
            raise ValueError(f"tolerated_loss={self.tolerated_loss}: give a share from 0 to below 1")
        for name, least in {"fine_tune_steps": 1, "episodes": 2, "calibration_steps": 1, "workers": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: give at least {least}")
        first = next((start for start in starts_of(self) if start.actor_steps), None)
        if self.variants and (first is None or "qat" not in self.methods):
            raise ValueError(
                f'variants={self.variants}: they are held against a training from scratch; name "qat" in methods and '
                "an agent with steps, or leave them out"
            )
        if first is not None:
            check(self.variants, first.algorithm, fewest(self.bits))


class Start(NamedTuple):
    """One agent of the sweep: what trains from scratch (0 steps: nothing), and the archive that is its fp32."""

    algorithm: str
    env_id: str
    actor_steps: int
    archive: AgentFile | None


def parse_agent(text: str) -> tuple[str, str, int]:
    """Return algorithm, environment and actor steps of "PPO/CartPole-v1/100000"; 0 where nothing trains from scratch.

    Raises:
        ValueError: the text has another form, or there is no recipe or no fake-quantized policy.
    """
    algorithm, _, rest = text.partition("/")
    algorithm = algorithm.upper()
    env_id, _, steps = rest.rpartition("/")
    if not rest or (steps.isdigit() and not env_id):
        raise ValueError(f"agents={text!r}: give algorithm/environment/actor steps, or algorithm/environment")
    if algorithm not in POLICIES:
        raise ValueError(f"agents={text!r}: choose an algorithm among {', '.join(POLICIES)}")
    if not steps.isdigit():
        return algorithm, current_name(rest), 0
    recipe = recipe_for(algorithm, env_id)
    return algorithm, recipe.env_id, int(steps) or recipe.total_steps


def starts_of(config: Config) -> list[Start]:
    """Return the agents of the sweep; without `agents` those of `start_from` whose training can go on.

    Raises:
        ValueError: an agent is named wrongly, or neither trains here nor lies in `start_from`.
    """
    folder = SHIPPED_AGENTS if config.start_from == SHIPPED else config.start_from
    try:
        files = [file for file in find_agents(folder) if file.algorithm in POLICIES] if folder else []
    except ValueError as error:
        raise ValueError(f"start_from={config.start_from!r}: {error}") from error
    starts = []
    for text in config.agents:
        algorithm, env_id, steps = parse_agent(text)
        found = [file for file in files if (file.algorithm, current_name(file.env_id)) == (algorithm, env_id)]
        if len(found) > 1:
            raise ValueError(f"start_from={config.start_from!r}: {text} is {' and '.join(f.name for f in found)}")
        if not found and not steps:
            raise ValueError(f"agents={text!r}: start_from={config.start_from!r} has none; give steps to train it")
        starts.append(Start(algorithm, env_id, steps, found[0] if found else None))
    if not config.agents:
        starts = [Start(file.algorithm, current_name(file.env_id), 0, file) for file in files if file.layout == "sb3"]
    for name, count in Counter(f"{start.algorithm}/{start.env_id}" for start in starts).items():
        if count > 1:
            raise ValueError(f"agents: {name} is there {count} times; name each once")
    return starts


class Cells(NamedTuple):
    """The cells of a sweep, none twice: those that train, those that start from an fp32 one, and which are twins."""

    trained: list[QATCell]
    started: list[QATCell]
    twins: frozenset[QATCell]


def cells_of(config: Config) -> Cells:
    """Return every cell of a sweep."""
    directory = Path(config.cells_dir) if config.cells_dir else PROJECT / "outputs" / "cells"
    all_bits = list(map(Bits.parse, config.bits))
    trained, started, twins = [], [], []
    for algorithm, env_id, steps, archive in starts_of(config):
        delay = round(config.delay_share * steps)
        select = delay if steps and recipe_for(algorithm, env_id).select_every_steps else 0
        for seed in config.seeds:
            fp32 = QATCell(
                algorithm, env_id, steps, "fp32", FP32, seed, 0, select, config.episodes, 0, None, 0, directory,
                digest_of_sources(), versions_of_libraries(),
            )  # fmt: skip
            if steps and (archive is None or set(config.methods) & set(SCRATCH)):
                trained.append(fp32)
                twins += [fp32] if archive else []
            start = fp32
            if archive:
                start = dataclasses.replace(fp32, actor_steps=0, start=archive, select_from_step=0)
                started.append(start)
            begun = dataclasses.replace(start, actor_steps=0, fp32_steps=start.actor_steps)
            started.append(dataclasses.replace(begun, method="random"))
            for bits in all_bits:
                rounded = dataclasses.replace(begun, method="ptq", bits=bits)
                started.append(dataclasses.replace(rounded, calibration_steps=config.calibration_steps))
                for method in config.methods:
                    if method in TUNED:
                        own = dataclasses.replace(begun, method=method, bits=bits, actor_steps=config.fine_tune_steps)
                        started.append(own)
                    elif steps:
                        own = dataclasses.replace(fp32, method=method, bits=bits, quant_delay_steps=delay)
                        trained.append(own)
    trained += _varied(config, trained)
    return Cells(list(dict.fromkeys(trained)), list(dict.fromkeys(started)), frozenset(twins))


def _varied(config: Config, trained: list[QATCell]) -> list[QATCell]:
    """Return the variants of the first agent's trainings with the fewest bits."""
    base = [cell for cell in trained if cell.method == "qat" and cell.bits == fewest(config.bits)]
    agents = [(cell.algorithm, cell.env_id) for cell in base]
    return [
        dataclasses.replace(
            cell, variant=name, bits=vary_bits(cell.bits, name),
            quant_delay_steps=0 if name == "from_start" else cell.quant_delay_steps,
        )
        for cell, agent in zip(base, agents, strict=True) if agent == agents[0]
        for name in config.variants
    ]  # fmt: skip


def run(config: Config, progress: Progress = no_progress) -> pd.DataFrame:
    """Train, quantize and evaluate every cell and return one row per episode.

    A finished cell lies on disk and is taken from there, so that an interrupted sweep goes on where it stood.

    Raises:
        ValueError: an archive of `start_from` cannot be trained on; before anything else is.
    """
    cells = cells_of(config)
    for start in {cell.start for cell in cells.started if cell.method in TUNED and not cell.finished}:
        if start is not None:
            try:
                check_tunable(start)
            except AgentError as error:
                raise ValueError(f"start_from={config.start_from!r}: {start.name}: {error}") from error
    everything = (*cells.trained, *cells.started)
    clock = _TimeLeft(progress, sum(cell.finished for cell in everything), len(everything))
    for phase in (cells.trained, cells.started):
        map_tasks(measure, [c for c in phase if not c.finished], config.workers, clock, lambda cell: cell.name)
    tables = [read(cell).assign(**({"method": TWIN} if cell in cells.twins else {})) for cell in everything]
    return pd.concat(tables, ignore_index=True)


class _TimeLeft:
    """Count cells over several calls of `map_tasks`, and say how long the rest will take at this pace."""

    def __init__(self, progress: Progress, done: int, total: int) -> None:
        self._progress, self._done_before, self._done, self._total = progress, done, done, total
        self._begin = time.monotonic()
        if done:
            progress(done, total, "cells, finished earlier")

    def __call__(self, done: int, total: int, what: str) -> None:
        self._done += 1
        pace = (time.monotonic() - self._begin) / (self._done - self._done_before)
        left = pace * (self._total - self._done)
        self._progress(self._done, self._total, f"cells, about {left / 60:.1f} min left, last {what}")


def weight_levels(config: Config) -> pd.DataFrame:
    """Return how often the layers of the first agent's policies, first seed, hold which weight; after the run."""
    cells = cells_of(config)
    first = starts_of(config)[0]
    tables = []
    for cell in (*cells.started, *cells.trained):
        of_first = (cell.algorithm, cell.env_id, cell.seed, cell.variant) == (*first[:2], config.seeds[0], "")
        if of_first and cell.method not in ("ptq", "random") and cell not in cells.twins:
            names = {"algorithm": cell.algorithm, "env_id": cell.env_id, "method": cell.method, "bits": str(cell.bits)}
            tables.append(read_levels(cell).assign(**names, weight_bits=cell.bits.weight))
    return pd.concat(tables, ignore_index=True)
