"""The virtual clock: times worked out by hand, the same rows twice, errors and ends as with real processes."""

from __future__ import annotations

import numpy as np
import pytest

from quarl_lib.actorq.config import Config
from quarl_lib.actorq.launch import virtual
from quarl_lib.actorq.launch.costs import Cost
from quarl_lib.actorq.launch.program import Part

US = 1e-6
COSTS = {"env_step": 200, "select_action": 100, "observe": 10, "pull": 20, "deserialize": 0, "load_weights": 30,
         "sample": 300, "learner_step": 2000, "quantize": 1000, "broadcast": 50}  # fmt: skip
CONFIG = Config(
    task="gym:CartPole-v0", algorithm="dqn", precision="int8", n_actors=1, actor_steps=1200, min_replay=400, n_step=1,
    policy_hidden=(8,), eval_period=800, eval_episodes=1, update_period=10**6, publish_period=10**6,
    samples_per_insert=8.0, flush_period=1,
)  # fmt: skip


def fixed(**changed: float) -> dict[str, Cost]:
    """Return a table whose stages always take the same time, in microseconds."""

    def cost(us: float) -> Cost:
        return lambda rng, num_bytes: us * US

    return {name: cost(us) for name, us in {**COSTS, **changed}.items()}


class Recorder:
    """Parts that only spend time, and what they did when."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def part(self, clock: virtual.Clock, name: str, costs: list[float]) -> Part:
        def work() -> None:
            for cost in costs:
                clock.spend(cost)
                self.seen.append((name, clock.time()))

        return Part(name, work, ())


def test_the_earliest_part_goes_next(tmp_path):
    clock, recorder = virtual.Clock({}, 0), Recorder()
    link = virtual.VirtualLink(tmp_path, 1, None, clock)
    parts = [recorder.part(clock, "a", [3, 3]), recorder.part(clock, "b", [1, 1, 3]), recorder.part(clock, "c", [4])]
    clock.run(parts, link)
    assert recorder.seen == [("b", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6)]


def test_parts_share_cores_first_come_first_served(tmp_path):
    """A stage takes a core; what it leaves behind takes one, too, but nobody waits for its end."""
    seen: list[tuple[str, float]] = []
    table = fixed(env_step=4 / US, observe=1 / US, behind_observe=5 / US, sample=2 / US)
    clock = virtual.Clock(table, 0, cores=2)

    def part(name: str, stages: list[str]) -> Part:
        def work() -> None:
            for stage in stages:
                clock.book(stage, 0, np.random.default_rng(0))
                seen.append((name, clock.time()))

        return Part(name, work, ())

    link = virtual.VirtualLink(tmp_path, 1, None, clock)
    clock.run([part("a", ["env_step", "sample"]), part("b", ["observe", "sample"]), part("c", ["sample"])], link)
    # a has one core to 4, b the other to 1 and its server to 6; c gets the first at 4, then b and a one each at 6
    assert [(name, round(now, 9)) for name, now in seen] == [("b", 1), ("a", 4), ("c", 6), ("a", 8), ("b", 8)]
    assert clock.worked() == pytest.approx(4 + 2 + 1 + 2 + 2)


def test_an_actor_that_waits_for_nobody_takes_what_its_stages_cost(tmp_path):
    tables = virtual.run(CONFIG.replace(samples_per_insert=0.0, min_replay=1200), tmp_path, fixed(), evaluated=False)
    steps = tables["episodes"].set_index("actor_steps").wall_time_s
    assert len(steps) > 15
    begin = (20 + 30 + 1000 + 50) * US  # the first weights are published, then pulled; then a reset every episode
    for number, (actor_steps, seconds) in enumerate(steps.items(), start=1):
        assert seconds == pytest.approx(begin + (310 * actor_steps + 210 * number) * US, abs=0.006)
    # the actor looks for the first weights every 5 ms; from there on the times are exact
    first, last = steps.index[0], steps.index[-1]
    assert steps[last] - steps[first] == pytest.approx((310 * (last - first) + 210 * (len(steps) - 1)) * US)


def test_actors_are_held_back_by_the_learner_at_the_ratio(tmp_path):
    """8 samples an insert, 64 a batch: one update of 2.3 ms in 8 inserts binds 4 actors, which take 80 us each."""
    tables = virtual.run(CONFIG.replace(n_actors=4), tmp_path, fixed(), evaluated=False)
    learner = tables["learner"].iloc[-1]
    free = CONFIG.min_replay * 320 * US / 4  # before learning begins
    assert learner.wall_time_s == pytest.approx(free + (learner.inserted - CONFIG.min_replay) * 2300 * US / 8, rel=0.05)
    timing = tables["timing"].groupby("stage").seconds.sum()
    assert timing["wait"] > 1.5 * (timing["env_step"] + timing["select_action"])
    energy = tables["emissions"].iloc[-1]
    assert energy.cpu_energy_kwh * 3.6e6 == pytest.approx(20.0 * timing.drop("wait").sum(), rel=0.01)  # 100 W, 5 cores
    assert energy.ram_energy_kwh * 3.6e6 == pytest.approx(10.0 * energy.wall_time_s)
    alone = virtual.run(CONFIG.replace(n_actors=4), tmp_path, fixed(learner_step=10, sample=10), evaluated=False)
    assert alone["learner"].wall_time_s.iloc[-1] < learner.wall_time_s / 2


def test_same_seed_same_rows_and_another_seed_others(tmp_path):
    written = []
    for number, seed in enumerate((3, 3, 4)):
        costs = {name: lambda rng, n, us=us: us * US * rng.uniform(0.5, 1.5) for name, us in COSTS.items()}
        virtual.run(CONFIG.replace(seed=seed, n_actors=2), tmp_path / str(number), costs)
        logs = sorted((tmp_path / str(number) / "logs").glob("*.jsonl"))
        written.append({log.name: log.read_text() for log in logs})
    assert {"episodes.actor-1.jsonl", "evaluations.evaluator.jsonl", "learner.learner.jsonl"} <= set(written[0])
    assert written[0] == written[1] != written[2]


def test_a_threshold_ends_the_run(tmp_path):
    tables = virtual.run(CONFIG.replace(stop_return=1.0, stop_evaluations=2), tmp_path, fixed())
    assert tables["stop"].reason.iloc[0].startswith("mean return of at least 1 at 8")
    played = tables["evaluations"].query("policy == 'learner'").actor_steps.tolist()
    assert played[:2] == [0, pytest.approx(800, abs=10)]


def test_an_error_in_a_part_ends_all_and_is_raised(tmp_path):
    with pytest.raises(KeyError, match="learner_step"):
        virtual.run(CONFIG, tmp_path, {name: cost for name, cost in fixed().items() if name != "learner_step"})
