"""Peers beside ActorQ: ratios by hand, what is given up is a lower bound, and one tiny training of each."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from quarl_lib.actorq.config import Config as Options
from quarl_lib.envs import control
from quarl_lib.envs.as_gym import AsGym
from quarl_lib.studies.actorq_training import beside_peers, figures, peers, sentences, study

TASK = "gym:Pendulum-v1"


def runs(*seconds: float) -> pd.DataFrame:
    """Return our runs as `runs.reduce` has them, one a seed."""
    rows = [
        {"task": TASK, "precision": "int8", "seed": i, "seconds": s, "threshold": 9.0} for i, s in enumerate(seconds)
    ]
    return pd.DataFrame(rows)


def peer(seed: int, seconds: float, returns: list[float], name: str = "sb3_sac") -> pd.DataFrame:
    """Return a peer's rows: an evaluation of two episodes every ten seconds."""
    rows = [{"record": "peer_evaluation", "actor_steps": 100 * (i + 1), "wall_time_s": 10.0 * (i + 1), "episode": e,
             "episode_return": value} for i, value in enumerate(returns) for e in range(2)]  # fmt: skip
    rows.append({"record": "peer", "needed": 2, "wall_time_s": seconds, "actor_steps": 999})
    return pd.DataFrame(rows).assign(task=TASK, peer=name, seed=seed)


def test_ratio_is_paired_by_seed_and_counts_to_the_first_of_two_evaluations():
    table = pd.concat([peer(0, 40.0, [1, 9, 9]), peer(1, 50.0, [1, 9, 1, 9, 9])])
    row = beside_peers.ratios(table, runs(5.0, 10.0)).iloc[0]
    assert (row.pairs, row.peer_seeds_reached, row.over_peer_is) == (2, 2, "measured")
    assert row.peer_seconds == 30.0  # 20 and 40
    assert row.over_peer == pytest.approx(4.0)
    assert (row.over_peer_low, row.over_peer_high) == pytest.approx((4.0, 4.0))


def test_a_peer_that_was_given_up_makes_the_ratio_a_lower_bound_and_the_sentence_says_so():
    table = pd.concat([peer(0, 40.0, [1, 9, 9]), peer(1, 45.0, [1, 1, 9])])
    ours = runs(5.0, 5.0)
    ratios = beside_peers.ratios(table, ours)
    row = ratios.iloc[0]
    assert (row.over_peer_is, row.peer_seeds_reached) == ("lower bound", 1)
    assert row.over_peer == pytest.approx((4 * 9) ** 0.5)
    assert np.isnan([row.over_peer_low, row.over_peer_high]).all()
    summary = pd.DataFrame([{"task": TASK, "precision": "int8", "seconds_to_threshold": 5.0, "threshold": 9.0, **row}])
    said = sentences.beside_peers(ratios, summary)
    assert "SAC got there with 1 of 2 seeds within 32.5 s, which is at least 6.00 x as long" in said
    assert "takes at least 6.0 x as long as ActorQ with int8 actors" in sentences._over_peers(summary)
    drawn = beside_peers.all_runs(table, ours)
    assert drawn.reached.tolist() == [True, True, True, False]
    plt.close(figures.peer_panels(drawn))


def test_a_seed_without_our_threshold_is_left_out_and_the_fastest_peer_counts():
    table = pd.concat([peer(0, 30.0, [9, 9]), peer(1, 30.0, [9, 9]), peer(0, 99.0, [1] * 9, "sb3_td3")])
    ratios = beside_peers.ratios(table, runs(5.0, np.nan)).set_index("peer")
    assert ratios.pairs.tolist() == [1, 1]
    assert ratios.over_peer.to_dict() == pytest.approx({"sb3_sac": 2.0, "sb3_td3": 99 / 5})
    assert beside_peers.nearest(ratios.reset_index()).peer.tolist() == ["sb3_sac"]
    nobody = beside_peers.ratios(table, runs(np.nan))
    assert (nobody.pairs == 0).all()
    assert beside_peers.nearest(nobody).empty


def test_no_peers_no_rows():
    table = pd.DataFrame([{"record": "episode"}])
    assert beside_peers.ratios(table, runs(5.0)).empty
    plt.close(figures.peer_panels(beside_peers.all_runs(table, runs(5.0))))
    assert "left out" in sentences.beside_peers(beside_peers.ratios(table, runs(5.0)), pd.DataFrame())


@pytest.mark.parametrize(("task", "steps", "whole"), [("gym:CartPole-v1", 40, True), (TASK, 200, False)])
def test_an_episode_that_is_cut_off_is_told_from_one_that_ended(task, steps, whole):
    environment = AsGym(control.make(task, 0))
    environment.action_space.seed(0)
    observation, _ = environment.reset()
    assert environment.observation_space.contains(observation)
    ended = False
    for _ in range(200):
        observation, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
        assert isinstance(reward, float)
        if ended := terminated or truncated:
            break
    assert ended
    assert (terminated, truncated) == (whole, not whole)


@pytest.mark.parametrize(("task", "name"), [("gym:CartPole-v1", "sb3_dqn"), (TASK, "sb3_sac"), (TASK, "sb3_td3")])
def test_a_peer_trains_with_our_sizes_and_ends_at_the_threshold(task, name):
    algorithm = "dqn" if name == "sb3_dqn" else "d4pg"
    options = Options(task=task, algorithm=algorithm, policy_hidden=(8, 4), critic_hidden=(6,), batch_size=16,
                      actor_steps=1000, min_replay=10, eval_period=60, eval_episodes=2, stop_return=-1e9)  # fmt: skip
    run = peers.PeerRun(name, options, max_seconds=0.0, threads=1)
    model = peers._model(run, AsGym(control.make(task, 0)))
    sizes = [tuple(weight.shape) for weight in model.policy.parameters() if weight.ndim == 2]
    first = 4 if name == "sb3_dqn" else 3
    assert (8, first) in sizes
    assert (4, 8) in sizes
    assert model.batch_size == 16
    table = peers.train(run)
    assert table[table.record == "peer_evaluation"].actor_steps.tolist() == [60, 60, 120, 120]
    (end,) = table[table.record == "peer"].itertuples()
    assert (end.actor_steps, end.needed, end.peer, end.task) == (120, 2, name, task)
    assert end.wall_time_s > 0


def test_a_peer_may_take_times_as_long_as_ours():
    config = study.Config(peer_times=5.0, peers=["sb3_sac", "sb3_td3", "sb3_dqn"])
    options = Options(task="gym:CartPole-v0", algorithm="dqn")
    (run,) = peers.beside(config, options, 12.0)
    assert (run.peer, run.max_seconds) == ("sb3_dqn", 60.0)
    assert [run.peer for run in peers.beside(config, Options(), 12.0)] == ["sb3_sac", "sb3_td3"]
    assert not list(peers.beside(config, options.replace(seed=1), 12.0))


def test_a_peer_is_given_up_when_its_time_is_over():
    options = Options(task="gym:CartPole-v1", algorithm="dqn", policy_hidden=(8,), batch_size=16, eval_period=50_000,
                      stop_return=500.0)  # fmt: skip
    table = peers.train(peers.PeerRun("sb3_dqn", options, max_seconds=0.3, threads=1))
    assert table.record.tolist() == ["peer"]
    assert table.wall_time_s.iloc[0] >= 0.3
    assert table.actor_steps.iloc[0] < options.actor_steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peers": ["sb3_ppo"]}, "'sb3_ppo' is unknown; choose among sb3_sac, sb3_td3, sb3_dqn"),
        ({"peers": ["sb3_sac", "sb3_sac"]}, "give each once"),
        ({"peer_seeds": [1]}, r"peer_seeds=\[1\]: give some of seeds=\[0\]"),
        ({"peer_times": -1.0}, "peer_times=-1.0"),
    ],
)
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**changes)
