"""One cell of the QAT sweep: train or quantize one policy, play its episodes, and keep the answer on disk for good."""

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

import pandas as pd
import torch

from quarl_lib.quantization.qat import QATConfig, fake_quant_layers, quantize_trained
from quarl_lib.results import write_atomically
from quarl_lib.sb3 import Agent, AgentFile, evaluate, load_agent, rollout
from quarl_lib.sb3.keep_best import KeepBest
from quarl_lib.sb3.qat_export import trained_agent
from quarl_lib.sb3.qat_policies import QuantDelay, quantized_recipe
from quarl_lib.sb3.recipes import recipe_for
from quarl_lib.sb3.train import PACKAGES, make_model, make_training_env, save

TRAINED, ROUNDED = ("fp32", "qat", "qat_lsq", "qat_engine"), ("ptq", "ptq_engine")
EVALUATION_SEED = 1_000_000  # far from any seed used in training
CALIBRATION_SEED = 2_000_000
PACKAGE = Path(__file__).resolve().parents[2]
# What a cell's numbers depend on: a change here is another cell.
SOURCES = ("quantization", "sb3", "envs/gym.py", "studies/qat_bit_sweep/cells.py")


@dataclass(frozen=True)
class Bits:
    """Bits of weights, activations, observation, and of the first and last layer's weights; 32 is fp32."""

    weight: int
    activation: int
    observation: int
    edge: int

    @classmethod
    def parse(cls, text: str) -> Bits:
        """Read "4" (everything), "4/8/16" (weights/activations/observation) or "4/8/16/8" (first and last layer too).

        Raises:
            ValueError: the text has another form, or a width is neither 32 nor from 2 to 16.
        """
        if not re.fullmatch(r"\d+(/\d+/\d+(/\d+)?)?", text):
            raise ValueError(f"bits={text!r}: give one number, or weights/activations/observation[/edge layers]")
        parts = [int(part) for part in text.split("/")]
        parts = parts * 4 if len(parts) == 1 else [*parts, parts[0]][:4]
        bits = cls(*parts)
        try:
            bits.config("qat")
        except ValueError as error:
            raise ValueError(f"bits={text!r}: {error}") from error
        return bits

    def __str__(self) -> str:
        parts = dataclasses.astuple(self)
        if len(set(parts)) == 1:
            return str(self.weight)
        return "/".join(map(str, parts[:3] if self.edge == self.weight else parts))

    def config(self, method: str) -> QATConfig:
        """Return the quantization of a method; the engines' grid fixes all but the weights' bits."""
        if method.endswith("engine"):
            return dataclasses.replace(QATConfig.for_engine("int8"), weight_bits=self.weight)
        return QATConfig(
            self.weight, self.activation, self.observation, self.edge, method="lsq" if method == "qat_lsq" else "minmax"
        )


FP32 = Bits(32, 32, 32, 32)


@dataclass(frozen=True)
class QATCell:
    """One policy of the sweep: what is trained on, how, and how long it is looked at."""

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
    cells_dir: Path
    sources: str  # `digest_of_sources()` when the sweep began
    versions: str  # `versions_of_libraries()` then

    @property
    def name(self) -> str:
        """A short name for a progress line."""
        bits = "" if self.bits == FP32 else f" {self.bits} bits"
        return f"{self.algorithm} {self.env_id} {self.method}{bits} seed {self.seed}"

    @property
    def directory(self) -> Path:
        """Where the answer lies: the name ends in a hash of everything that it depends on."""
        recipe = {name: str(value) for name, value in vars(recipe_for(self.algorithm, self.env_id)).items()}
        settings = {**dataclasses.asdict(self), "cells_dir": "", "recipe": recipe}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return self.cells_dir / f"{re.sub('[^A-Za-z0-9.-]+', '_', self.name)}-{digest}"

    @property
    def finished(self) -> bool:
        """Tell whether the answer lies there; its table is written last."""
        return (self.directory / "episodes.parquet").exists()

    @property
    def reads(self) -> list[Path]:
        """The folders that it needs, wherever it is measured."""
        return [self.fp32.directory] if self.method in ROUNDED else []

    @property
    def writes(self) -> list[Path]:
        """The folders in which its answer lies."""
        return [self.directory]

    @property
    def fp32(self) -> QATCell:
        """The fp32 training with the same seed."""
        return dataclasses.replace(self, method="fp32", bits=FP32, quant_delay_steps=0, calibration_steps=0)

    @property
    def archive(self) -> AgentFile:
        """The fp32 agent, which PTQ starts from."""
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
    """Train (or quantize) a cell's policy, let it play, and store one row an episode; nothing if that was done before.

    PTQ needs the fp32 cell of its seed to be finished.
    """
    if cell.finished:
        return
    agent, seconds = _quantized(cell) if cell.method in ROUNDED else _trained(cell)
    episodes = evaluate(agent, agent.policy, cell.episodes, EVALUATION_SEED)
    settings = {
        name: value for name, value in vars(cell).items() if name not in ("bits", "cells_dir", "sources", "versions")
    }
    for part, value in vars(cell.bits).items():
        settings[f"{part}_bits"] = value
    table = episodes.rename(columns={"seed": "episode_seed"}).assign(**settings, training_cpu_s=seconds)
    write_atomically(cell.directory / "levels.parquet", lambda path: _levels(agent).to_parquet(path, index=False))
    write_atomically(cell.directory / "episodes.parquet", lambda path: table.to_parquet(path, index=False))


def _trained(cell: QATCell) -> tuple[Agent, float]:
    """Train by the recipe and return the agent and the processor's seconds, trials aside."""
    recipe = dataclasses.replace(recipe_for(cell.algorithm, cell.env_id), total_steps=cell.actor_steps)
    callbacks: list[QuantDelay | KeepBest] = []
    if cell.method != "fp32":
        recipe = quantized_recipe(recipe, cell.bits.config(cell.method))
        callbacks.append(QuantDelay(cell.quant_delay_steps))
    keep_best = KeepBest(cell.env_id, cell.select_from_step, recipe.select_every_steps)
    if recipe.select_every_steps:
        callbacks.append(keep_best)
    env = make_training_env(recipe, cell.seed)
    model = make_model(recipe, env, cell.seed)
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


def _quantized(cell: QATCell) -> tuple[Agent, float]:
    """Quantize the fp32 agent on the grid of QAT, its inputs' ranges from a rollout of its own."""
    agent = load_agent(cell.archive)
    observations = torch.from_numpy(rollout(agent, agent.policy, cell.calibration_steps, CALIBRATION_SEED))
    policy = quantize_trained(agent.policy, ("latent", "head"), cell.bits.config(cell.method), observations)
    return dataclasses.replace(agent, policy=policy), float("nan")


@torch.no_grad()
def _levels(agent: Agent) -> pd.DataFrame:
    tables = []
    quantized = dict(fake_quant_layers(agent.policy))
    for name, layer in agent.policy.named_modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            weight = quantized[name].quantized_weight() if name in quantized else layer.weight
            values, counts = weight.unique(return_counts=True)
            tables.append(pd.DataFrame({"layer": name, "weight": values.numpy(), "count": counts.numpy()}))
    return pd.concat(tables, ignore_index=True)
