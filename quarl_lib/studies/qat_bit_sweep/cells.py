"""One cell of the QAT sweep: make one policy, play its episodes, and keep the answer on disk for good."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import time
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from quarl_lib.quantization.qat import fake_quant_layers, quantize_trained
from quarl_lib.results import write_atomically
from quarl_lib.sb3 import Agent, AgentFile, content_hash, evaluate, load_agent, rollout
from quarl_lib.sb3.keep_best import KeepBest
from quarl_lib.sb3.qat_export import trained_agent
from quarl_lib.sb3.qat_policies import QuantDelay, quantized_recipe
from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.sb3.train import PACKAGES, make_model, make_training_env, save
from quarl_lib.sb3.tuning import fine_tune
from quarl_lib.studies.qat_bit_sweep.bits import FP32, Bits
from quarl_lib.studies.qat_bit_sweep.summary import TUNED
from quarl_lib.studies.qat_bit_sweep.variants import vary_model, vary_quantization, vary_recipe

EVALUATION_SEED = 1_000_000  # far from any seed used in training
CALIBRATION_SEED = 2_000_000
SEED_STRIDE = 10_000  # each training seed plays episodes of its own, all methods the same ones
PACKAGE = Path(__file__).resolve().parents[2]
# What a cell's numbers depend on: a change here is another cell.
SOURCES = ("quantization", "sb3", "envs/gym.py", "studies/qat_bit_sweep/cells.py", "studies/qat_bit_sweep/variants.py")


@dataclass(frozen=True)
class QATCell:
    """One policy of the sweep: what it is made from, how, and how long it is looked at.

    Methods: "fp32" trains by the recipe, or is the archive `start`; "ptq" rounds that one, those of `TUNED` train it
    on, and "random" plays its environment without it; every other one trains from scratch.
    """

    algorithm: str
    env_id: str
    actor_steps: int
    method: str
    bits: Bits
    seed: int
    quant_delay_steps: int
    select_from_step: int  # where the recipe keeps its best weights: those from this step on
    episodes: int
    calibration_steps: int
    start: AgentFile | None
    fp32_steps: int  # of the training that "ptq" and fine-tuning start from; 0 for an archive
    cells_dir: Path
    sources: str  # `digest_of_sources()` when the sweep began
    versions: str  # `versions_of_libraries()` then
    variant: str = ""  # what else this training from scratch changes

    @property
    def name(self) -> str:
        """A short name for a progress line."""
        bits = "" if self.bits == FP32 else f" {self.bits} bits"
        variant = f" {self.variant}" if self.variant else ""
        return f"{self.algorithm} {self.env_id} {self.method}{bits}{variant} seed {self.seed}"

    @property
    def directory(self) -> Path:
        """Where the answer lies: the name ends in a hash of everything that it depends on."""
        recipe = {}
        if self.start is None:
            recipe = {name: str(value) for name, value in vars(recipe_for(self.algorithm, self.env_id)).items()}
        start = "" if self.start is None else content_hash(self.start)
        settings = {**dataclasses.asdict(self), "cells_dir": "", "recipe": recipe, "start": start}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return self.cells_dir / f"{re.sub('[^A-Za-z0-9.-]+', '_', self.name)}-{digest}"

    @property
    def finished(self) -> bool:
        """Tell whether the answer lies there; its table is written last."""
        return (self.directory / "episodes.parquet").exists()

    @property
    def reads(self) -> list[Path]:
        """What it may start from, wherever it is measured."""
        return [self.fp32.directory] if self.start is None else self.start.parts

    @property
    def writes(self) -> list[Path]:
        """The folders in which its answer lies."""
        return [self.directory]

    @property
    def fp32(self) -> QATCell:
        """The fp32 training with the same seed."""
        steps = self.fp32_steps or self.actor_steps
        return dataclasses.replace(
            self, method="fp32", bits=FP32, actor_steps=steps, fp32_steps=0, quant_delay_steps=0, calibration_steps=0
        )

    @property
    def archive(self) -> AgentFile:
        """The fp32 agent, which PTQ and fine-tuning start from."""
        if self.start is not None:
            return self.start
        folder = self.fp32.directory / self.algorithm.lower() / self.env_id
        return AgentFile(self.algorithm, self.env_id, folder / f"{self.env_id}.zip", "sb3")


@cache
def digest_of_sources() -> str:
    """Return a hash of the code that trains, quantizes and evaluates."""
    files = [path for source in SOURCES for path in sorted((PACKAGE / source).rglob("*.py"))]
    files += [PACKAGE / source for source in SOURCES if source.endswith(".py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def versions_of_libraries() -> str:
    """Return the versions of the libraries that train and play, e.g. "torch 2.6.0"."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)


def read(cell: QATCell) -> pd.DataFrame:
    """Return a finished cell's episodes."""
    return pd.read_parquet(cell.directory / "episodes.parquet")


def read_levels(cell: QATCell) -> pd.DataFrame:
    """Return how often a finished cell's layers hold which weight: layer, weight, count."""
    return pd.read_parquet(cell.directory / "levels.parquet")


def measure(cell: QATCell) -> None:
    """Make a cell's policy, let it play, and store one row an episode; nothing if that was done before.

    PTQ and fine-tuning need the fp32 cell of their seed to be finished, unless they start from an archive.
    """
    if cell.finished:
        return
    agent, seconds = _policy(cell)
    seed = EVALUATION_SEED + SEED_STRIDE * cell.seed
    acting = _Random(agent, seed) if cell.method == "random" else agent.policy
    episodes = evaluate(agent, acting, cell.episodes, seed)
    left_out = ("bits", "cells_dir", "sources", "versions", "fp32_steps")
    settings = {name: value for name, value in vars(cell).items() if name not in left_out}
    settings["start"] = "" if cell.start is None else cell.start.name
    settings["grid"] = "" if cell.bits == FP32 else cell.bits.grid
    for part in ("weight", "activation", "observation", "edge"):
        settings[f"{part}_bits"] = getattr(cell.bits, part)
    table = episodes.rename(columns={"seed": "episode_seed"}).assign(**settings, training_cpu_s=seconds)
    write_atomically(cell.directory / "levels.parquet", lambda path: _levels(agent).to_parquet(path, index=False))
    write_atomically(cell.directory / "episodes.parquet", lambda path: table.to_parquet(path, index=False))


def _policy(cell: QATCell) -> tuple[Agent, float]:
    """Return a cell's agent and the seconds of the processor that its training took."""
    if cell.method == "ptq":
        return _rounded(cell), float("nan")
    if cell.method in TUNED:
        return _tuned(cell)
    if cell.method == "random" or (cell.method == "fp32" and cell.start is not None):
        return load_agent(cell.archive), float("nan")
    return _trained(cell)


class _Random:
    """Draws actions uniformly from the environment's, whatever it observes."""

    def __init__(self, agent: Agent, seed: int) -> None:
        env = agent.make_env(seed)
        self._space = env.action_space
        env.close()

    def act(self, observation: np.ndarray) -> np.ndarray:
        """Return an action for each observation [n, ...]."""
        return np.stack([self._space.sample() for _ in observation])


def _trained(cell: QATCell) -> tuple[Agent, float]:
    """Train by the recipe and return the agent and the processor's seconds, trials aside."""
    recipe = dataclasses.replace(recipe_for(cell.algorithm, cell.env_id), total_steps=cell.actor_steps)
    callbacks: list[QuantDelay | KeepBest] = []
    if cell.bits != FP32:
        recipe = quantized_recipe(
            vary_recipe(recipe, cell.variant), vary_quantization(cell.bits.config(cell.method), cell.variant)
        )
        callbacks.append(QuantDelay(cell.quant_delay_steps))
    keep_best = KeepBest(cell.env_id, cell.select_from_step, recipe.select_every_steps)
    if recipe.select_every_steps:
        callbacks.append(keep_best)
    env = make_training_env(recipe, cell.seed)
    model = make_model(recipe, env, cell.seed)
    vary_model(model, cell.variant)
    begin = time.process_time()
    model.learn(cell.actor_steps, callback=list(callbacks))
    seconds = time.process_time() - begin - keep_best.seconds
    agent = trained_agent(model, cell.env_id)
    if cell.method == "fp32":
        write_atomically(cell.archive.path, lambda path: save(model, path))
        statistics = model.get_vec_normalize_env()
        if statistics is not None:
            write_atomically(cell.archive.path.with_name("vecnormalize.pkl"), lambda path: statistics.save(str(path)))
    env.close()
    return agent, seconds


def _tuned(cell: QATCell) -> tuple[Agent, float]:
    """Train the fp32 agent on under the cell's bits; the seconds hold the trials that choose its best weights."""
    begin = time.process_time()
    model = fine_tune(cell.archive, None, cell.bits.config(cell.method), cell.actor_steps, seed=cell.seed)
    return trained_agent(model, load_agent(cell.archive)), time.process_time() - begin


def _rounded(cell: QATCell) -> Agent:
    """Quantize the fp32 agent on the grid of QAT, its inputs' ranges from a rollout of its own."""
    agent = load_agent(cell.archive)
    seed = CALIBRATION_SEED + SEED_STRIDE * cell.seed
    observations = torch.from_numpy(rollout(agent, agent.policy, cell.calibration_steps, seed))
    policy = quantize_trained(agent.policy, ("latent", "head"), cell.bits.config(cell.method), observations)
    return dataclasses.replace(agent, policy=policy)


@torch.no_grad()
def _levels(agent: Agent) -> pd.DataFrame:
    tables = []
    quantized = dict(fake_quant_layers(agent.policy))
    layers = [
        (name, layer)
        for name, layer in agent.policy.named_modules()
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)
    ]
    for number, (name, layer) in enumerate(layers, start=1):  # names depend on where the agent comes from
        weight = quantized[name].quantized_weight() if name in quantized else layer.weight
        values, counts = weight.unique(return_counts=True)
        tables.append(pd.DataFrame({"layer": number, "weight": values.numpy(), "count": counts.numpy()}))
    return pd.concat(tables, ignore_index=True)
