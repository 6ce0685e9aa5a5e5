"""An actor: act, observe, pull. One loop for both algorithms, every precision and both ways to write transitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from quarl_lib.actorq.actor.copies import play
from quarl_lib.actorq.actor.exploration import make_exploration
from quarl_lib.actorq.config import Config
from quarl_lib.actorq.link import ENV_RESET, ENV_STEP, OBSERVE, Link, Stopped
from quarl_lib.actorq.replay.batched import BatchedNStep
from quarl_lib.actorq.replay.choice import make_adder
from quarl_lib.actorq.replay.transitions import Adder
from quarl_lib.actorq.timing import StageTimer
from quarl_lib.actorq.weights.broadcast import Subscriber, subscriber_of
from quarl_lib.envs import control, specs, vectorized
from quarl_lib.inference import Engine, PolicySpec, make_engine
from quarl_lib.inference.pack import aligned_empty, convert, packed_size

LOOK_EVERY = 8  # actor steps between two looks at the stop flag; a step takes 50 us to 3 ms
LOG_EVERY_S = 0.5
WEIGHTS_TIMEOUT_S = 60.0


class Puller:
    """Asks for the version first and fetches only what is new; converts it only between precisions."""

    def __init__(self, spec: PolicySpec, engine: Engine, subscriber: Subscriber, weights_precision: str) -> None:
        self._spec, self._engine, self._subscriber = spec, engine, subscriber
        size = packed_size(spec, engine.precision)
        # Converted weights lie here, the same memory for every message: new pages would cost as much as converting.
        self._own = aligned_empty(size) if weights_precision != engine.precision else None
        self.version = 0  # publications so far, when the weights in use were fetched
        self.fetched = self.fetched_bytes = 0

    def __call__(self, timer: StageTimer) -> bool:
        """Return whether there were new weights."""
        version = self._subscriber.version()
        if version == self.version:
            timer.lap("pull")
            return False
        buffer: Any = self._subscriber.fetch()
        self.version = version
        self.fetched, self.fetched_bytes = self.fetched + 1, self.fetched_bytes + len(buffer)
        timer.lap("pull", len(buffer))
        if self._own is not None:
            # Only the native engine takes what is its own without summing it up again.
            seal = self._engine.backend != "native"
            buffer = convert(self._spec, buffer, self._engine.precision, self._own, seal=seal)
            timer.lap("deserialize")
        self._engine.load(buffer)
        timer.lap("load_weights")
        return True


def run_episode(
    environment: dm_env.Environment,
    select_action: Callable[[Any], Any],
    adder: Adder,
    timer: StageTimer,
    after_step: Callable[[], bool],
) -> tuple[float, int, bool]:
    """Play one episode; return its return, its steps, and whether it was played to its end.

    `after_step` pulls, counts, and says whether to go on.
    """
    episode_return, steps = 0.0, 0
    timestep = environment.reset()
    timer.lap("env_step")
    adder.add_first(timestep)
    timer.lap("observe")
    while not timestep.last():
        action = select_action(timestep.observation)
        timer.lap("select_action")
        timestep = environment.step(action)
        timer.lap("env_step")
        adder.add(action, timestep)
        timer.lap("observe")
        episode_return += float(timestep.reward)
        steps += 1
        if not after_step():
            return episode_return, steps, timestep.last()
    return episode_return, steps, True


class ActorCallback:
    """What an actor does after each step and episode: count, pull, log."""

    def __init__(self, config: Config, link: Link, actor_id: int, pull: Puller, timer: StageTimer) -> None:
        self._config, self._link, self._actor_id = config, link, actor_id
        self._pull, self._timer = pull, timer
        self._published_ns = self._published_steps = 0
        self._note_weights()
        self.steps = link.actor_steps_of(actor_id)
        self._episodes: list[dict[str, object]] = []
        self._logged_at = link.now()

    def after_step(self, count: int = 1) -> bool:
        """Count steps, pull when it is time, and say whether to go on."""
        before, self.steps = self.steps, self.steps + count
        period = self._config.update_period
        if self.steps // period > before // period and self._pull(self._timer):
            self._note_weights()
        if self.steps // LOOK_EVERY > before // LOOK_EVERY:
            self._link.set_actor_steps(self._actor_id, self.steps)
            if self._link.now() - self._logged_at > LOG_EVERY_S:
                self.write_rows()
            return not self._link.should_stop() and self._link.actor_steps() < self._config.actor_steps
        return True

    def _note_weights(self) -> None:
        self._link.set_pulled(self._actor_id, self._pull.version)
        _, self._published_ns, self._published_steps = self._link.publication()

    def after_episode(self, episode_return: float, episode_steps: int) -> None:
        """Note an episode; rows go to disk together, a few times a second."""
        self._link.set_actor_steps(self._actor_id, self.steps)
        self._episodes.append(
            {
                "actor_id": self._actor_id,
                "actor_steps": self._link.actor_steps(),
                "episode_steps": episode_steps,
                "wall_time_s": self._link.wall_time_s(),
                "episode_return": episode_return,
            }
        )
        if self._link.now() - self._logged_at > LOG_EVERY_S:
            self.write_rows()

    def write_rows(self) -> None:
        """Append what was noted and timed since the last time."""
        self._link.set_actor_steps(self._actor_id, self.steps)
        if self._episodes:
            self._link.log("episodes", self._episodes)
        self._link.log(
            "timing",
            self._timer.rows(
                part="actor",
                actor_id=self._actor_id,
                precision=self._config.precision,
                actor_steps=self._link.actor_steps(),
                learner_steps=self._link.learner_steps(),
                wall_time_s=self._link.wall_time_s(),
                weights_version=self._pull.version,
                weights_age_steps=self._link.actor_steps() - self._published_steps,
                weights_age_s=self._link.now() - self._published_ns / 1e9,
            ),
        )
        self._episodes.clear()
        self._logged_at = self._link.now()
        self._timer.reset()


def run(config: Config, link: Link, actor_id: int, generation: int = 0) -> None:
    """Act until the run stops or all actors together took their steps.

    `generation` counts the predecessors that died: each has random numbers of its own, and so has a resumed run.
    """
    import torch

    from quarl_lib.actorq.actor.policy import policy_spec

    torch.set_num_threads(1)
    seeds = np.random.SeedSequence([config.seed, actor_id, generation, link.resumed_steps])
    environment_seed, engine_seed = (int(seed) for seed in seeds.generate_state(2))
    flat = config.adder != "acme"
    if config.envs_per_actor > 1:
        own_seeds = np.random.SeedSequence(environment_seed).generate_state(config.envs_per_actor)
        environment: Any = vectorized.make(config.task, own_seeds.tolist())
    else:
        environment = control.make(config.task, environment_seed, flat=flat)
    environment_spec = specs.make_environment_spec(environment)
    spec = policy_spec(config, environment_spec)
    engine = make_engine(spec, config.precision, config.backend, engine_seed)
    explore = make_exploration(config, environment_spec, actor_id, np.random.default_rng(seeds))

    tick = link.ticker(ENV_STEP)  # what follows an action

    def select_action(observation: Any) -> Any:
        action = explore(engine(observation))
        tick()
        return action

    if not flat and isinstance(environment_spec.observations, dict):
        flatten = control.Flattener(environment_spec.observations)

        def select_action(observation: Any) -> Any:
            action = explore(engine(flatten(observation)))
            tick()
            return action

    subscriber = subscriber_of(link, actor_id)
    wait_for_weights(subscriber, link)
    adder = make_adder(config, link, environment_spec, actor_id)
    timer = link.timer()
    pull = Puller(spec, engine, subscriber, config.weights_precision)
    pull(timer)
    callback = ActorCallback(config, link, actor_id, pull, timer)
    timer.reset()
    try:
        if config.envs_per_actor > 1:
            link.beat(ENV_RESET)
            transitions = BatchedNStep(environment_spec, config.envs_per_actor, config.n_step, config.discount)
            writer: Any = adder
            play(environment, select_action, transitions, writer, timer, callback.after_step, callback.after_episode)
        while config.envs_per_actor == 1 and not link.should_stop() and link.actor_steps() < config.actor_steps:
            link.beat(ENV_RESET)
            played, steps, ended = run_episode(environment, select_action, adder, timer, callback.after_step)
            if ended:
                callback.after_episode(played, steps)
        link.beat(OBSERVE)
        adder.flush()
    except Stopped:
        pass  # the run ends while the ratio held this actor back
    finally:
        callback.write_rows()


def wait_for_weights(subscriber: Subscriber, link: Link, timeout_s: float = WEIGHTS_TIMEOUT_S) -> None:
    """Wait for the learner's first publication.

    Raises:
        Stopped: the run is to end.
        TimeoutError: none came.
    """
    deadline = link.now() + timeout_s
    while not subscriber.version():
        if link.waiting():
            raise Stopped
        if link.now() > deadline:
            raise TimeoutError(f"{link.part}: the learner published no weights within {timeout_s:g} s; see its log")
        link.pause(0.005)
