"""A finished run of the PTQ study, small and with known numbers, as the explorer's tests read it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from quarl_lib.results import PROJECT
from quarl_lib.suite import states

AGENTS = {"a2c/CartPole-v1": ("A2C", "CartPole-v1"), "ppo/Pendulum-v1": ("PPO", "Pendulum-v1")}
RETURNS = {"fp32": 500.0, "int8": 480.0, "int4": 100.0}  # of seed 0; each further seed has 10 less


def write_run(suite: Path, name: str = "smoke-12345678", shift: float = 0.0) -> Path:
    """Write a run with two agents, three precisions and three seeds, its summary computed by the study."""
    from quarl_lib.studies import ptq_study

    rows = [
        {
            "algorithm": algorithm, "env_id": env_id, "agent": agent, "precision": precision, "engine": "simulated",
            "disturbance": "none",
            "quantizer": "none" if precision == "fp32" else "paper", "observation": "none", "episode": seed,
            "seed": seed, "episode_return": value - 10 * seed + shift, "episode_length": 10, "kl_divergence": 0.5,
            "kl_kind": "logits", "same_action_rate": 1.0, "mean_abs_action_difference": 0.0, "warning": "", "error": "",
            "trained_on": env_id, "normalisation": "none",
        }
        for agent, (algorithm, env_id) in AGENTS.items() for precision, value in RETURNS.items() for seed in range(3)
    ]  # fmt: skip
    folder = suite / "ptq_study" / name
    (folder / "figures").mkdir(parents=True)
    table = pd.DataFrame(rows)
    table.to_parquet(folder / "results.parquet", index=False)
    ptq_study.summarize(table).to_csv(folder / "summary.csv", index=False)
    notebook = PROJECT / "notebooks" / "01_ptq_study.ipynb"
    (folder / "notebook.ipynb").write_text(notebook.read_text())
    parameters = {"quantizers": ["paper"], "observation_quantization": ["none"], "confidence": 0.95, "seed": 0}
    facts = {"study": "ptq_study", "suite": suite.name, "preset": suite.name, "notebook": str(notebook)}
    states.change(folder, "ok", **facts, parameters=parameters, started=shift, key_figure=f"shifted by {shift:g}")
    return folder


def edit_notebook(folder: Path, old: str, new: str) -> None:
    """Replace a text in the code of a run's notebook."""
    notebook = json.loads((folder / "notebook.ipynb").read_text())
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    assert any(old in source for source in sources)
    for cell, source in zip(notebook["cells"], sources, strict=True):
        cell["source"] = source.replace(old, new)
    (folder / "notebook.ipynb").write_text(json.dumps(notebook))
