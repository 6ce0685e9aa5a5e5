"""What `quarl agents` says of a folder, the layouts people bring, and archives that nobody meant to be read."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarl_lib import cli
from quarl_lib.sb3 import SHIPPED_AGENTS, AgentError, AgentFile, find_agents, load_agent
from quarl_lib.sb3.describe import describe_agents
from quarl_lib.studies.ptq_study import Config
from quarl_lib.suite import catalog, parameters

GOOD = SHIPPED_AGENTS / "ppo" / "CartPole-v1"


def test_every_agent_has_a_row_and_what_is_refused_its_reason(tmp_path: Path) -> None:
    shutil.copytree(GOOD, tmp_path / "ppo" / "CartPole-v1")
    shutil.copytree(GOOD, tmp_path / "ppo" / "CartPole-v1_2")
    shutil.copytree(GOOD, tmp_path / "a2c" / "CartPole-v1")
    (tmp_path / "ppo" / "Nothing-v0").mkdir()
    rows = {row["name"]: row for row in describe_agents(tmp_path)}
    assert set(rows) == {"ppo/CartPole-v1", "ppo/CartPole-v1_2", "a2c/CartPole-v1", "ppo/Nothing-v0"}
    assert rows["ppo/CartPole-v1_2"]["refused"] is None
    assert "native" in rows["ppo/CartPole-v1"]["engines"] or "numpy" in rows["ppo/CartPole-v1"]["engines"]
    assert "trained with PPO" in rows["a2c/CartPole-v1"]["refused"]
    assert "no archive" in rows["ppo/Nothing-v0"]["refused"]
    json.dumps(list(rows.values()))


def test_the_table_has_a_line_per_agent_and_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(GOOD, tmp_path / "ppo" / "CartPole-v1")
    shutil.copytree(GOOD, tmp_path / "ppo" / "CartPole-v0")
    shutil.copytree(GOOD, tmp_path / "a2c" / "CartPole-v1")
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["agents", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["agent", "observations", "actions", "statistics", "parameters", "runs", "on"]
    assert lines[1].split()[:2] == ["a2c/CartPole-v1", "refused:"]
    (row,) = [line for line in lines if line.startswith("ppo/CartPole-v1")]
    assert row.split() == ["ppo/CartPole-v1", "Box(4,)", "Discrete(2)", "none", "4,610", "[1]"]
    assert [line for line in lines if line.startswith("[1] ") and "fp32" in line]


def test_folders_of_the_hub_of_the_zoo_and_single_archives_are_found(tmp_path: Path) -> None:
    shutil.copytree(GOOD, tmp_path / "hub" / "ppo-CartPole-v1")
    (folder,) = find_agents(tmp_path / "hub")
    assert (folder.algorithm, folder.env_id) == ("PPO", "CartPole-v1")
    (own,) = find_agents(tmp_path / "hub" / "ppo-CartPole-v1")
    assert own.name == folder.name
    shutil.copytree(GOOD, tmp_path / "zoo" / "ppo" / "CartPole-v1_1")
    (single,) = find_agents(tmp_path / "zoo" / "ppo" / "CartPole-v1_1" / "CartPole-v1.zip")
    assert (single.algorithm, single.env_id) == ("PPO", "CartPole-v1")
    assert load_agent(single).env_id == "CartPole-v1"


def test_two_agents_never_share_a_name(tmp_path: Path) -> None:
    for place in ("ppo/CartPole-v1", "ppo-CartPole-v1", "ppo2/CartPole-v1", "zoo/CartPole-v1"):
        shutil.copytree(GOOD, tmp_path / place)
    names = [file.name for file in find_agents(tmp_path)]
    assert names == ["ppo/CartPole-v1", "ppo/CartPole-v1#2", "ppo/CartPole-v1#3", "zoo/CartPole-v1"]


def test_the_readmes_commands_take_environments_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("ppo/Sound-v0", "ppo/faulty_agents:Sound-v0"):
        shutil.copytree(GOOD, tmp_path / "my_agents" / place)
    section = (Path(__file__).parents[2] / "README.md").read_text().split("## Your own agents in the studies")[1]
    (line,) = [line for line in section.splitlines() if line.startswith("quarl agents")]
    monkeypatch.chdir(tmp_path)
    words = line.split("#")[0].replace("my_package", "faulty_agents").split()
    assert cli.main([*words[1:], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["refused"] for row in rows] == [None, None]
    assert [row["env_id"] for row in rows] == ["Sound-v0", "faulty_agents:Sound-v0"]
    declared = catalog.find_studies(catalog.find_project())["ptq_study"].parameters
    for run in [line for line in section.split("\n## ")[0].splitlines() if line.startswith("quarl run")]:
        Config(**parameters.from_pairs([option for option in run.split() if "=" in option], declared))


@pytest.mark.parametrize("content", ["hello", "42", "1: 2", "[]", "- [a]", "normalize: [1, 2]"])
def test_settings_of_any_type_are_read_or_refused(content: str, tmp_path: Path) -> None:
    shutil.copytree(GOOD, tmp_path / "ppo" / "CartPole-v1")
    (tmp_path / "ppo" / "CartPole-v1" / "config.yml").write_text(content)
    try:
        load_agent(find_agents(tmp_path)[0])
    except AgentError as error:
        refused = str(error)
        assert "config.yml" in refused


def test_weights_of_compiled_policies_play_and_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    def change(name: str, value: torch.Tensor) -> tuple[str, torch.Tensor]:
        return f"_orig_mod.{name}", value

    compiled = load_agent(AgentFile("PPO", "CartPole-v1", rewritten(tmp_path / "c.zip", change), "sb3"))
    plain = load_agent(AgentFile("PPO", "CartPole-v1", GOOD / "CartPole-v1.zip", "sb3"))
    met = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(compiled.policy.act(met), plain.policy.act(met))

    def spoil(name: str, value: torch.Tensor) -> tuple[str, torch.Tensor]:
        if name == "action_net.weight":
            value[1, 3] = torch.nan
        return name, value

    with pytest.raises(AgentError, match=r"action_net\.weight\[1, 3\] is not finite"):
        load_agent(AgentFile("PPO", "CartPole-v1", rewritten(tmp_path / "n.zip", spoil), "sb3"))


def rewritten(path: Path, change) -> Path:
    """Write the shipped archive anew with `change(name, tensor)` for every weight."""
    with zipfile.ZipFile(GOOD / "CartPole-v1.zip") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "policy.pth":
                weights = torch.load(io.BytesIO(content), weights_only=True)
                stored = io.BytesIO()
                torch.save(dict(change(key, value) for key, value in weights.items()), stored)
                content = stored.getvalue()
            target.writestr(name, content)
    return path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("policy_class", "policy_kwargs", "use_sde", "clip_range", "observation_space", "action_space")
SHAPES = st.lists(st.integers(0, 5), max_size=4)


def load_mutated(folder: Path, settings_changed: dict, shapes: dict, flipped: list[tuple[int, int]], cut: int) -> None:
    path = folder / "mutated.zip"

    def change(name: str, value: torch.Tensor) -> tuple[str, torch.Tensor]:
        return name, torch.zeros(shapes[name]) if name in shapes else value

    rewritten(path, change)
    with zipfile.ZipFile(path) as source:
        parts = {name: source.read(name) for name in source.namelist()}
    parts["data"] = json.dumps({**json.loads(parts["data"]), **settings_changed}).encode()
    with zipfile.ZipFile(path, "w") as target:
        for name, content in parts.items():
            target.writestr(name, content)
    whole = bytearray(path.read_bytes())
    for place, value in flipped:
        whole[place % len(whole)] = value
    path.write_bytes(whole[: len(whole) - cut])
    try:
        load_agent(AgentFile("PPO", "CartPole-v1", path, "sb3"))
    except AgentError as error:
        reason = str(error)
        assert len(reason) > 10


MUTATIONS = {
    "settings_changed": st.dictionaries(st.sampled_from(NAMES), JSON, max_size=2),
    "shapes": st.dictionaries(st.sampled_from(["action_net.weight", "action_net.bias"]), SHAPES, max_size=1),
    "flipped": st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3),
    "cut": st.sampled_from([0, 0, 0, 1, 50, 5000]),
}
FUZZ: Any = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@settings(max_examples=25, derandomize=True, **FUZZ)
@given(**MUTATIONS)
def test_a_mutated_archive_loads_or_is_an_agent_error(tmp_path: Path, **mutation) -> None:
    load_mutated(tmp_path, **mutation)


@pytest.mark.slow
@settings(max_examples=1000, **FUZZ)
@given(**MUTATIONS)
def test_a_thousand_mutated_archives_load_or_are_agent_errors(tmp_path: Path, **mutation) -> None:
    load_mutated(tmp_path, **mutation)
