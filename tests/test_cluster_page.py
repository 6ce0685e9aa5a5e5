"""The first walk-through of docs/cluster.md, typed as it stands there: two nodes, on one host."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from quarl_lib import cli
from quarl_lib.results import PROJECT

PAGE = (PROJECT / "docs/cluster.md").read_text()
LAPTOPS = PAGE.partition("## Two laptops\n")[2].partition("\n## ")[0]


def commands() -> list[str]:
    return [line for block in re.findall(r"```bash\n(.*?)```", LAPTOPS, re.DOTALL) for line in block.splitlines()]


def test_the_page_starts_two_nodes_and_stops_them():
    said = commands()
    assert [line.split()[1] for line in said] == ["start", "start", "run", "run", "stop"]
    (cloud,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert yaml.safe_load(cloud)["head_node_type"] in yaml.safe_load(cloud)["available_node_types"]


def test_the_setting_for_a_gpu_is_accepted(capsys):
    text = PAGE.partition("## A machine with a GPU\n")[2].partition("\n## ")[0]
    (command,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == ".venv/bin/quarl"
    assert cli.main([*words[1:], "--dry-run"]) == 0
    said = capsys.readouterr().out
    for part in (
        "n_actors = 4\n",
        "batch_size = 256\n",
        "samples_per_insert = 16.0\n",
        "policy_hidden = [2048, 2048, 2048]\n",
    ):
        assert part in said


@pytest.mark.slow
def test_two_nodes_on_one_host_started_by_the_commands_of_the_page(tmp_path):
    ray = Path(sys.executable).with_name("ray")
    if not ray.exists():
        pytest.skip("needs the extra [ray]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    try:
        for line in commands():
            here = line.replace("192.168.0.10", "127.0.0.1").replace("6379", port).replace(".venv/bin", str(ray.parent))
            if "quarl run" in here:
                here += f" --output {tmp_path}"
            if " stop" in here:
                continue
            done = subprocess.run(here, shell=True, cwd=PROJECT, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, f"{here}\n{done.stdout}\n{done.stderr}"
    finally:
        stopped = subprocess.run([ray, "stop"], capture_output=True, text=True, timeout=120)
    assert stopped.returncode == 0
    left = subprocess.run(["pgrep", "-f", f"raylet.*{port}"], capture_output=True, text=True).stdout
    assert not left
