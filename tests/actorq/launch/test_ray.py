"""Runs over the nodes of a Ray cluster: two and three nodes on one host, killed nodes and actors, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from inference_cases import random_weights

from quarl_lib.actorq.actor.policy import task_policy
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import cluster, local, node
from quarl_lib.actorq.launch.program import build, weights_bytes
from quarl_lib.actorq.launch.supervisor import RunFailed
from quarl_lib.actorq.replay import relay
from quarl_lib.inference.pack import pack

CONFIG = Config(
    task="gym:CartPole-v0", algorithm="dqn", precision="int8", policy_hidden=(64, 64), critic_learning_rate=1e-3,
    actor_steps=30_000, min_replay=500, samples_per_insert=4.0, batch_size=32, eval_period=1500, eval_episodes=3,
    update_period=50, stop_return=40.0,
)  # fmt: skip
ENDLESS = CONFIG.replace(actor_steps=10_000_000, max_seconds=120.0, stop_return=float("inf"), eval_period=1_000_000)


def run(config, directory, address, progress=lambda done, total, what: None):
    from quarl_lib.actorq.launch import ray as launch

    return launch.run(config, directory, progress, metered=False, address=address)


def once_actors_act(directory, act, steps=2000):
    """Return a `progress` that calls `act` with the processes' rows when every actor has taken its steps."""
    done: list[object] = []

    def progress(taken, total, what):
        if not done and taken > steps and len(rows := local.read(directory, "processes")) >= 3:
            done.append(act(rows))

    return progress, done


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["local", "reverb"])
def test_training_over_two_nodes_reaches_its_threshold_with_the_tables_of_one_machine(nodes, tmp_path, replay):
    made, _ = nodes
    config = CONFIG.replace(replay=replay)
    tables = run(config, tmp_path / "ray", made.address)
    alone = local.run(config, tmp_path / "local", metered=False)
    assert "mean return" in tables["stop"].reason[0]
    for name, table in alone.items():
        if len(table):
            assert {*table.columns, "node"} == set(tables[name].columns), name
    homes = tables["nodes"].set_index("part").node
    assert homes["actor-0"] != homes["actor-1"]  # spread
    assert set(homes) == set(tables["episodes"].node) == set(tables["timing"].node) - set(tables["learner"].node)
    per_actor = tables["episodes"].groupby("actor_id").episode_steps.sum()
    assert (per_actor > 500).all()
    inserted = tables["learner"].inserted.iloc[-1]
    assert per_actor.sum() <= inserted * 1.05  # n-step writes more than a transition a step; none is lost


@pytest.mark.slow
def test_the_weights_of_an_actor_elsewhere_are_seldom_older_than_its_update_period(nodes, tmp_path):
    made, _ = nodes
    tables = run(CONFIG.replace(actor_steps=12_000, stop_return=float("inf")), tmp_path, made.address)
    rows = tables["timing"].query("part == 'actor'")
    # Steps of all actors: two update periods of its own, and what both take between two messages.
    per_message = 12_000 / tables["learner"].wall_time_s.max() * 0.2
    assert rows.weights_age_steps.median() < 4 * CONFIG.update_period + per_message
    assert rows.weights_version.max() > 20


@pytest.mark.slow
def test_an_actor_that_is_killed_is_replaced_on_its_node(nodes, tmp_path):
    made, _ = nodes
    progress, done = once_actors_act(
        tmp_path, lambda rows: os.kill(int(rows[rows.part == "actor-1"].pid.iloc[-1]), signal.SIGKILL)
    )
    tables = run(ENDLESS.replace(actor_steps=40_000), tmp_path, made.address, progress)
    assert done
    (death,) = tables["deaths"].itertuples()
    assert death.part == "actor-1"
    assert "SIGKILL" in death.reason
    home = tables["nodes"].set_index("part").node["actor-1"]
    assert death.node == home
    generations = tables["processes"].query("part == 'actor-1'")
    assert generations.generation.tolist() == [0, 1]
    assert set(generations.node) == {home}
    assert tables["stop"].reason[0] in ("learner ended", "the actors took their steps")


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["local", "reverb"])
def test_the_actors_of_a_node_that_is_lost_go_on_elsewhere(nodes, tmp_path, replay):
    made, others = nodes
    at = []

    def lose(rows):
        at.append((time.monotonic(), local.read(tmp_path, "episodes").actor_steps.max()))
        made.remove_node(others[0], allow_graceful=False)

    progress, done = once_actors_act(tmp_path, lose)
    tables = run(ENDLESS.replace(actor_steps=150_000, replay=replay), tmp_path, made.address, progress)
    assert done
    events = tables["nodes"]
    (lost,) = events[events.event == "lost"].itertuples()
    moved = events[(events.event == "actor") & (events.wall_time_s > 0)]
    assert len(moved) == 1
    assert moved.node.iloc[0] != lost.node
    part = moved.part.iloc[0]
    starts = tables["processes"][tables["processes"].part == part].sort_values("wall_time_s")
    assert starts.generation.tolist() == [0, 1]
    assert starts.node.iloc[-1] == moved.node.iloc[0]
    late = tables["episodes"][tables["episodes"].wall_time_s > lost.wall_time_s]
    assert int(part.removeprefix("actor-")) in set(late.actor_id)  # it acts again
    assert tables["stop"].reason[0] in ("learner ended", "the actors took their steps")


@pytest.mark.slow
def test_a_lost_learner_fails_the_run_and_leaves_nothing_on_the_nodes(nodes, tmp_path):
    made, _ = nodes
    pids: list[int] = []

    def kill(rows):
        pids.extend(int(pid) for pid in rows.pid)
        os.kill(int(rows[rows.part == "learner"].pid.iloc[0]), signal.SIGKILL)

    progress, _ = once_actors_act(tmp_path, kill)
    with pytest.raises(RunFailed, match="learner was killed by SIGKILL"):
        run(ENDLESS, tmp_path, made.address, progress)
    assert pids
    deadline = time.monotonic() + 20.0
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_what_a_cluster_cannot_do_is_said_before_anything_starts(nodes):
    made, _ = nodes
    with cluster.joined(made.address, 1) as joined:
        too_many = cluster.placed(joined, 9, timeout_s=1.0)
        with pytest.raises(ValueError, match=r"n_actors=9: learner and actors need 10 CPUs.*the cluster has 5"):
            too_many.__enter__()
        with pytest.raises(ValueError, match=r"node .* has python 3\.1\d\.\d+ \(here 3\.99\)"):
            cluster.check_alike(joined, {**node.versions(), "python": "3.99"})
        cluster.check_alike(joined, node.versions())


@pytest.mark.slow
def test_actors_fit_on_every_cpu_that_the_learner_leaves(nodes):
    made, _ = nodes
    for _ in range(2):
        made.add_node(num_cpus=6, include_dashboard=False)
    with cluster.joined(made.address, 1) as joined:
        for num_actors in (15, 16):
            with cluster.placed(joined, num_actors, timeout_s=20.0) as node_ids:
                assert len(node_ids) == num_actors
                assert cluster.own_node(joined) not in node_ids  # its only CPU is the learner's


def test_an_address_that_is_none_and_a_cluster_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="ray_address='somewhere': give '' to start Ray"):
        run(CONFIG, tmp_path, "somewhere")
    assert not list(tmp_path.iterdir())


STARTS = """
from quarl_lib.actorq.launch import cluster
for number in range(2):
    with cluster.joined("", 1) as ray:
        print(ray.get(ray.remote(lambda: number + 1).remote()))
"""


def test_ray_starts_a_second_time_in_one_process():
    """As in a notebook's kernel; in a process of its own, since Ray keeps a token for a process's life."""
    pytest.importorskip("ray", reason="needs the extra [ray]")
    ran = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, timeout=180)
    assert ran.stdout.split() == ["1", "2"], ran.stderr[-2000:]


def test_without_ray_its_install_line_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ValueError, match=r"launcher='ray': Ray cannot be imported .*\[ray\]"):
        cluster.import_ray()


def test_a_node_runs_actors_on_weights_and_counters_from_elsewhere(tmp_path):
    """What a node does, without Ray: the learner's side is played by hand."""
    config = CONFIG.replace(n_actors=2, replay="local", update_period=10, samples_per_insert=0.0)
    program = build(config, tmp_path)
    link, (part,) = program.link, [part for part in program.parts if part.actor_id == 1]
    rings = link.replay
    here = node.Node(config, "elsewhere", "localhost", weights_bytes(config), program.prepare)
    try:
        spec = task_policy(config)
        rng = np.random.default_rng(0)
        buffer = np.array(pack(spec, random_weights(spec, rng), config.precision))
        here.publish(buffer, 7, published_at_s=0.0, actor_steps=100)
        here.start([(replace(part, arguments=(config, None, 1)), node.Ahead(3, 40, 40))], wall_time_s=5.0)
        relay.begin_at(rings, 1, 40)
        written, steps, deadline = "", 0, time.monotonic() + 60.0
        while steps < 140 and time.monotonic() < deadline:
            time.sleep(0.05)
            words = tuple(link.board[word] for word in node.OWN_WORDS)
            up = here.exchange(node.Down(words, (7, 0.0, 100), (25, 0), np.array(rings.counts())))
            for vectors in up.transitions.values():
                relay.extend(rings, 1, vectors)
            written += up.written.get("timing.actor-1.jsonl", b"").decode()
            steps = up.actor_steps[1]
        assert steps >= 140
        assert (up.pulled, up.running, up.failed) == ({1: 7}, 1, "")
        assert relay.inserted_by(rings, 1) > steps - 10  # each step's transition, and it goes on
        assert here.link.actor_steps_of(0) == 25
    finally:
        last = here.close()
    written += last["timing.actor-1.jsonl"].decode()
    rows = [json.loads(line) for line in written.splitlines()]
    assert {row["weights_version"] for row in rows} == {7}
    assert all(row["wall_time_s"] > 5.0 and row["actor_steps"] > 25 + 40 for row in rows)
    assert not here.link.directory.exists()
