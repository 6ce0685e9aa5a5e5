"""Actor scaling: the model's formula and every reduction by hand, a tiny run end to end."""

from __future__ import annotations

import dataclasses

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarl_lib import provenance
from quarl_lib.actorq.learner.networks import initial_policy
from quarl_lib.inference.pack import pack
from quarl_lib.studies.actor_scaling import figures, machines, model, sentences, study
from quarl_lib.studies.actor_scaling.projection import project

TINY = study.Config(
    actor_steps=300, policy_hidden=[16], critic_hidden=[16], batch_size=16, min_replay=50, publish_period=1
)  # fmt: skip
TWO_TO_FOUR = study.Config(samples_per_insert=1.0, batch_size=64)
# A megabyte of weights at fp32, all on one machine.
ALONE = {"nodes": 1, "actors_elsewhere": 0, "transition_bytes": 100}
SENT = {precision: {**ALONE, "weights_bytes": size} for precision, size in (("fp32", 1_000_000), ("int8", 250_000))}


def test_the_model_by_hand():
    # 4 actors at 1000 us a step; 20 ms updates of 64 samples, 16 samples a step, on 2 cores; 1200 us of CPU on 6 cores.
    sides = model.bounds(1000.0, 4, 20_000.0, 16.0, 64, learner_cores=2, cpu=1200.0, cores=6)
    assert sides == {"actors": 250.0, "learner": 2500.0, "cores": 200.0, "network": 0.0}
    assert model.slowest(sides) == "learner"
    assert model.slowest(model.bounds(1000.0, 1, 20_000.0, 0.1, 64)) == "actors"
    # Cores that take a quarter from each other: a learner on its own device does not feel it.
    sides = model.bounds(1000.0, 4, 20_000.0, 16.0, 64, learner_cores=2, cpu=1200.0, cores=6, slowdown=1.25)
    assert sides == {"actors": 312.5, "learner": 2500.0, "cores": 250.0, "network": 0.0}
    assert model.slowest(model.bounds(1000.0, 4, 1000.0, 16.0, 256, network=251.0)) == "network"


# Half of the steps come from elsewhere: 50 bytes a step in; a megabyte to three nodes every 1,000 steps: 3,000 out.
SENT_BY_STEP = model.Traffic(100.0, 1e6, 1e-3, 3, 0.5)


def test_the_network_by_hand():
    # 50 bytes a microsecond: 3,050 bytes take 61 us. 16 publications a second leave then, less than the most of 20.
    assert SENT_BY_STEP.us_per_step(0.05) == pytest.approx(61.0)
    # 100 a microsecond: 20 publications a second take 60 of them, the other 40 carry 50 bytes in 1.25 us.
    assert SENT_BY_STEP.us_per_step(0.1) == pytest.approx(1.25)
    assert SENT_BY_STEP.least_gigabytes_per_s(61.0) == pytest.approx(0.05)
    assert SENT_BY_STEP.least_gigabytes_per_s(1.25) == pytest.approx(0.1)
    assert SENT_BY_STEP.us_per_step(0.0) == 0.0  # no network
    assert model.Traffic(100.0, 1e6, 1e-3, 0, 0.0).us_per_step(0.05) == 0.0  # one machine
    assert model.Traffic(100.0, 1e6, 1e-3, 0, 0.0).least_gigabytes_per_s(61.0) == 0.0


TRAFFIC = st.builds(
    model.Traffic, st.floats(10, 1e5), st.floats(1e3, 1e9), st.floats(1e-6, 1), st.integers(1, 100), st.floats(0.01, 1)
)  # fmt: skip


@given(TRAFFIC, st.floats(1e-4, 100), st.floats(1, 1000))
def test_more_bandwidth_never_makes_it_slower(sent, gigabytes_per_s, factor):
    slow, fast = (sent.us_per_step(bandwidth) for bandwidth in (gigabytes_per_s, factor * gigabytes_per_s))
    assert 0 < fast <= slow * (1 + 1e-9)


@given(TRAFFIC, st.floats(0.1, 1e6))
def test_from_the_least_bandwidth_on_the_network_keeps_the_pace(sent, us_per_step):
    least = sent.least_gigabytes_per_s(us_per_step)
    assert sent.us_per_step(least * 1.001) <= us_per_step
    assert sent.us_per_step(least * 0.999) >= us_per_step


def test_a_summary_over_nodes_by_hand():
    """Two actors, one of them on another machine, which gets a megabyte at every publication, one in 64 steps."""
    row = {"round": 0, "precision": "fp32", "actor_us": 900.0, "actor_steps": 1000, "learner_us": 6400.0, "cores": 8,
           "learner_steps": 3, "cpu_us": 900.0, "slowdown": 1.0, **SENT["fp32"]}  # fmt: skip
    other = {"n_actors": 2, "us_per_step": 1000.0, "nodes": 2, "actors_elsewhere": 1}
    rows = pd.DataFrame([{**row, "n_actors": 1, "us_per_step": 900.0}, {**row, **other}])
    config = study.Config(samples_per_insert=1.0, batch_size=64, publish_period=1, gigabytes_per_s=0.015)
    one, two = study.summarize(rows, config).itertuples()
    assert (one.nodes, one.network_us, one.bound_by) == (1, 0.0, "actors")
    # 50 bytes and 15,625 at 15 a microsecond
    assert (two.nodes, two.network_us) == (2, pytest.approx(15_675 / 15))
    assert (two.bound_by, two.predicted_us, two.prediction_error) == (
        "network", two.network_us, pytest.approx(15.675 / 15 - 1)
    )  # fmt: skip


def test_the_learner_may_run_ahead_by_one_batch():
    for one in study.options(study.Config(batch_size=64, samples_per_insert=0.01), 0):
        assert one.replay_error_buffer == 64.0
    (*_, smallest) = study.options(study.Config(batch_size=1), 0)
    assert smallest.replay_error_buffer == 2.0  # below this Reverb could block both sides


def test_measured_by_hand():
    def row(part: str, actor_id: int, stage: str, seconds: float, count: int) -> dict:
        return {"part": part, "actor_id": actor_id, "stage": stage, "seconds": seconds, "count": count}

    timing = pd.DataFrame(
        [
            row("actor", 0, "select_action", 0.6, 1000), row("actor", 0, "env_step", 0.4, 1001),
            row("actor", 1, "select_action", 0.5, 500), row("actor", 1, "observe", 0.5, 500),
            row("learner", -1, "sample", 9.0, 10), row("learner", -1, "learner_step", 0.2, 10),
            row("learner", -1, "quantize", 0.1, 2),
        ]
    )  # fmt: skip
    cpu = pd.DataFrame({"part": ["actor-0", "actor-1", "learner"], "cpu_s": [0.9, 0.9, 0.3]})
    assert study.measured(timing, cpu) == pytest.approx(
        # 1000 and 500 steps a second make one every 667 us; 2 s for 1500 steps; 30 ms an update; 2.1 s of CPU
        {"us_per_step": 2000 / 3, "actor_us": 4000 / 3, "actor_steps": 1500, "learner_us": 30_000, "learner_steps": 10,
         "cpu_us": 1400}
    )  # fmt: skip


@pytest.fixture
def summary() -> pd.DataFrame:
    rows = []
    for number, slow in ((0, 1.0), (1, 2.0)):  # the machine is twice as slow in the second round
        for precision, n_actors, us in (
            ("fp32", 1, 900.0), ("fp32", 2, 500.0), ("fp32", 4, 520.0),
            ("int8", 1, 300.0), ("int8", 2, 150.0), ("int8", 4, 140.0),
        ):  # fmt: skip
            rows.append({"round": number, "precision": precision, "n_actors": n_actors, "us_per_step": slow * us,
                         "actor_us": slow * us * n_actors, "actor_steps": 1000, "learner_us": 6400.0, "cores": 2,
                         "learner_steps": 3, "cpu_us": slow * us * n_actors * 1.1, **SENT[precision],
                         "slowdown": 1.0 if n_actors == 1 or precision == "int8" else 1.1 + number / 10})  # fmt: skip
    return study.summarize(pd.DataFrame(rows), TWO_TO_FOUR)


def test_summary_by_hand(summary):
    assert tuple(summary.columns) == study.SUMMARY_COLUMNS
    rows = summary.set_index(["precision", "n_actors"])
    assert rows.fits.tolist() == [True, True, False] * 2
    fp32 = rows.loc["fp32", 2]
    root = 2**0.5  # rounds at 1 and 2 times a time: their geometric mean is its root of two
    assert fp32.us_per_step == pytest.approx(500 * root)
    # Logarithms half a log 2 off their mean: deviation over the root of two is 0.5, t of one degree of freedom 12.706.
    assert (fp32.us_low, fp32.us_high) == pytest.approx(
        (500 * root * 2 ** (-0.5 * 12.7062), 500 * root * 2 ** (0.5 * 12.7062)), rel=1e-4
    )
    slower = (1.1 * 1.2) ** 0.5
    assert fp32.slowdown == pytest.approx(slower)
    # CPU over both cores: more than without the factor 1.1
    assert fp32.predicted_us == pytest.approx(slower * 1.1 * 900 * root / 2)
    assert fp32.bound_by == "cores"
    assert fp32.prediction_error == pytest.approx(slower * 1.1 * 900 / 2 / 500 - 1)
    assert rows.loc[("fp32", 1), "bound_by"] == "actors"
    int8 = rows.loc["int8", 2]
    for column in ("speedup_over_fp32", "speedup_over_fp32_low", "speedup_over_fp32_high"):
        assert int8[column] == pytest.approx(500 / 150)  # paired: no spread although the machine's speed halved
    assert int8.speedup_over_one == pytest.approx(2.0)
    assert int8.cores_used == pytest.approx(2.2)
    assert int8.seconds_for_steps == pytest.approx(0.150 * root)


def test_words_figures_and_projection(summary):
    config = study.Config(
        projected_learner_ms=[1.6], projected_cores=[1, 16], projected_nodes=[1], projected_batch_size=256
    )
    projected = project(summary, config)
    cells = projected.set_index(["actor_cores", "precision"])
    # 1.6 ms * 16 / 256 = 100 us a step is the learner's; actors take 900 and 300 us, times the root of two.
    assert cells.loc[(1, "int8"), "steps_per_s"] == pytest.approx(1e6 / (300 * 2**0.5))
    assert cells.loc[(1, "int8"), "speedup_over_fp32"] == pytest.approx(3.0)
    assert cells.loc[(16, "int8"), "steps_per_s"] == pytest.approx(1e4)
    assert cells.bound_by.tolist() == ["actors", "actors", "learner", "learner"]
    assert set(projected.kind) == {"projection"}
    assert (
        "2 actors take a step every 212 µs, 2.00 × [2.00, 2.00] one actor's pace, 3.33 × [3.33, 3.33] as many steps"
        in sentences.verdict(summary)
    )
    assert "from 16 cores on the learner binds" in sentences.projection_verdict(projected)
    said = sentences.model_verdict(summary)
    assert (
        "off where every actor has a core by 14% at most (2 points), past the cores by 18% at most (2 points);" in said
    )
    assert "nothing to predict" in sentences.model_verdict(summary[summary.n_actors == 1])
    assert "of a lone actor's CPU time, 1.15 × at fp32, 1.00 × at int8." in sentences.model_verdict(summary)
    assert sentences.contention_verdict(summary[summary.n_actors == 1]) == ""
    assert "other work" not in sentences.model_verdict(summary)
    crowded = summary.assign(cores_used=[1.0, 1.2, 1.2] * 2)
    assert "At 2 of the 4 points that fit, other work left" in sentences.model_verdict(crowded)
    assert sentences.beside_paper(summary).ours.tolist() == ["1.80 ×", "2.00 ×"]
    plt.close(figures.time_over_actors(summary).figure)  # type: ignore[arg-type]
    plt.close(figures.projection_panels(projected))


def test_where_the_network_binds_is_projected_and_said(summary):
    config = study.Config(
        projected_learner_ms=[1.6], projected_cores=[1, 4], projected_nodes=[1, 2, 3], gigabytes_per_s=0.015
    )
    projected = project(summary, config)
    assert set(zip(projected.nodes, projected.actor_cores, strict=True)) == {(1, 1), (1, 4), (2, 4), (3, 4)}
    cells = projected.set_index(["nodes", "actor_cores", "precision"])
    # Four cores take 900 / 4 and 300 / 4 us, times the root of two; the learner 100. A publication in 160 steps.
    assert cells.loc[(1, 4, "fp32"), "steps_per_s"] == pytest.approx(1e6 / (225 * 2**0.5))
    assert cells.loc[(1, 4), "least_gigabytes_per_s"].tolist() == [0.0, 0.0]
    # Two nodes at fp32: 50 and 6,250 bytes a step at 15 a microsecond. At int8 the most that leaves takes 5 of them.
    assert cells.loc[(2, 4, "fp32"), "steps_per_s"] == pytest.approx(1e6 / 420)
    assert cells.loc[(2, 4), "bound_by"].tolist() == ["network", "actors"]
    assert cells.loc[(2, 4, "int8"), "speedup_over_fp32"] == pytest.approx(420 / (75 * 2**0.5))
    assert cells.loc[(2, 4, "fp32"), "least_gigabytes_per_s"] == pytest.approx(6.3 / (225 * 2**0.5))
    said = sentences.network_verdict(projected, 0.015)
    assert "with 4 cores for actors and a learner step of 1.6 ms, over a link of 0.015 GB/s" in said
    assert "binds from 2 nodes on at fp32, on no number of them at int8; on 3 nodes it leaves the pace" in said
    assert "from 0.0395 GB/s on at fp32, 0.0106 GB/s on at int8." in said
    assert sentences.network_verdict(projected[projected.nodes == 1], 0.015) == ""
    assert "no network was given; on 3 nodes" in sentences.network_verdict(projected, 0.0)
    figure = figures.network_panels(projected)
    (ax,) = figure.axes
    assert [np.size(line.get_xdata()) for line in ax.lines] == [3, 2, 3, 0]  # the hollow ones: where the network binds


def test_one_round_has_no_interval_and_that_is_said_and_drawn(summary):
    row = {"round": 0, "actor_us": 900.0, "actor_steps": 1000, "learner_us": 6400.0, "cores": 2, "learner_steps": 3,
           "cpu_us": 900.0, "slowdown": 1.0, "n_actors": 1, **SENT["fp32"]}  # fmt: skip
    rows = [{**row, "precision": precision, "us_per_step": us} for precision, us in (("fp32", 900.0), ("int8", 300.0))]
    alone = study.summarize(pd.DataFrame(rows), TWO_TO_FOUR)
    assert alone.us_per_step.tolist() == pytest.approx([900.0, 300.0])
    assert alone[["us_low", "us_high", "speedup_over_fp32_low"]].isna().all(axis=None)
    assert "3.00 × (one round: no interval) as many steps as at fp32" in sentences.verdict(alone)
    for table, error_bars in ((alone, 0), (summary, 2)):
        ax = figures.time_over_actors(table)
        assert len(ax.collections) == error_bars
        plt.close(ax.figure)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_tiny_run_end_to_end():
    table = study.run(TINY)
    summary = study.summarize(table, TINY)
    assert len(summary) == 4
    assert (summary.us_per_step > 0).all()
    assert (summary.cpu_us > 0.5 * summary.actor_us).all()
    assert (summary.slowdown[summary.n_actors == 1] == 1.0).all()
    assert summary.slowdown.between(1.0, 5.0).all()
    assert "the cost model's prediction is off by" in sentences.key_figure(summary)


def test_actors_are_spread_over_hosts_and_a_hosts_nodes_share_its_cores():
    machines_found = machines.Machines((2, 4))
    assert machines_found.cores == 6
    assert [machines_found.at_once(n_actors) for n_actors in (1, 3, 16)] == [1, 2, 4]
    processes = pd.DataFrame({"part": ["actor-0", "learner"], "node": ["far", "here"]})
    events = [("actor", "far", "actor-0"), ("actor", "here", "actor-1"), ("lost", "far", ""), ("actor", "b", "actor-0")]
    nodes = pd.DataFrame(events, columns=["event", "node", "part"])
    assert machines.spread({"processes": processes, "nodes": nodes}) == {"nodes": 2, "actors_elsewhere": 1}
    assert machines.spread({"processes": processes}) == {"nodes": 1, "actors_elsewhere": 0}


def test_what_travels_is_what_the_launcher_sends():
    (one, *_) = study.options(TINY, 0)
    sent = machines.message_bytes(one)
    assert sent["transition_bytes"] == 4 * (5 + 1 + 1 + 1 + 5)  # observations, action, return, discount
    assert sent["weights_bytes"] == pack(*initial_policy(one, 0), one.precision).nbytes


@pytest.mark.slow
def test_over_two_nodes_of_one_host_the_model_has_a_network(nodes):
    """The head has room for the learner alone, so every actor is elsewhere; all nodes share this host's cores."""
    made, _ = nodes
    config = dataclasses.replace(TINY, launcher="ray", ray_address=made.address, precisions=["fp32", "int8"])
    table = study.run(config)
    assert table.actors_elsewhere.tolist() == table.n_actors.tolist()
    assert (table.nodes == 1 + table.n_actors).all()
    assert set(table.cores) == {provenance.allowed_cores()}
    assert (table.us_per_step > 0).all()
    summary = study.summarize(table, config)
    assert (summary.network_us > 0).all()
    slow = study.summarize(table, dataclasses.replace(config, gigabytes_per_s=1e-6))
    assert set(slow.bound_by) == {"network"}
    assert (slow.predicted_us > summary.predicted_us).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update_period": 0}, "update_period=0"),
        ({"actors": []}, "actors="),
        ({"actors": [1, 0]}, "actors="),
        ({"precisions": ["fp32", "int7"]}, "precision='int7'"),
        ({"precisions": ["int8"]}, "leave fp32 and 1 in"),
        ({"samples_per_insert": 0.0}, "samples_per_insert=0.0"),
        ({"contention_rounds": 0}, "contention_rounds=0"),
        ({"projected_cores": [0]}, "projected_cores="),
        ({"projected_nodes": [2, 4]}, "leave 1 in, for one machine"),
        ({"projected_nodes": [1, 65]}, r"no more than the most of projected_cores=\[1, 4, 16, 64\]"),
        ({"projected_publish_period": 0}, "projected_publish_period=0"),
        ({"gigabytes_per_s": -1.0}, "gigabytes_per_s=-1.0: give a finite number of at least 0"),
        ({"gigabytes_per_s": float("nan")}, "gigabytes_per_s=nan"),
        ({"launcher": "virtual"}, "launcher='virtual': choose one of local, ray"),
        ({"launcher": "ray", "ray_address": "there"}, "ray_address='there': give ''"),
    ],
)
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        study.Config(**changes)
