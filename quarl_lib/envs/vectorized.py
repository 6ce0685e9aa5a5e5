"""N copies of a control task behind one interface: actions [n, ...] in, one batched timestep out.

After a copy's last step its next one begins an episode, whatever its action, as in dm_env. A time limit ends an episode
with discount 1, an end with discount 0. `backend="auto"` takes the first that has the task:

- `together`: gymnasium's CartPole and Pendulum, all copies in one step, with the bits of the single environment;
- `envpool`: EnvPool's copy in C++ (an extra): classic control, and the dm_control domains that were held against the
  originals (`CHECKED_DOMAINS`). Starting states are drawn by other generators, and an episode that ends at its time
  limit counts as cut off. From equal states and actions observations agree to 1e-3 (tests/envs/test_vectorized.py);
- `loop`: whatever else there is, one copy after the other, each with the bits of the single environment.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

from quarl_lib.envs import control, registry
from quarl_lib.envs.lanes import Together, side_by_side

BACKENDS = ("auto", "together", "envpool", "loop")
FIRST, MID, LAST = (int(kind) for kind in dm_env.StepType)
CHECKED_DOMAINS = ("acrobot", "ball_in_cup", "cartpole", "cheetah", "finger", "fish", "hopper")
CLASSIC = ("Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "CartPole-v0", "CartPole-v1", "Pendulum-v1")


class TimeSteps(NamedTuple):
    """Timesteps of n copies: step types int [n], rewards and discounts float32 [n], observations float32 [n, size].

    At an episode's first step its reward is 0 and its discount 1.
    """

    step_type: np.ndarray
    reward: np.ndarray
    discount: np.ndarray
    observation: np.ndarray

    def of(self, copy: int) -> dm_env.TimeStep:
        """Return one copy's timestep."""
        first = self.step_type[copy] == FIRST
        return dm_env.TimeStep(
            dm_env.StepType(int(self.step_type[copy])), None if first else self.reward[copy],
            None if first else self.discount[copy], self.observation[copy],
        )  # fmt: skip


class Copies(Protocol):
    """What every backend offers; specs are those of one copy."""

    backend: str

    def reset(self) -> TimeSteps:
        """Start an episode in every copy."""

    def step(self, actions: np.ndarray) -> TimeSteps:
        """Take one step in every copy, with counted actions [n] or canonical ones in [-1, 1], [n, k]."""

    def observation_spec(self) -> specs.Array:
        """Return one copy's observations."""

    def action_spec(self) -> specs.Array:
        """Return one copy's actions."""

    def close(self) -> None:
        """Close every copy."""


def make(task: str, seeds: Sequence[int], backend: str = "auto") -> Copies:
    """Make one copy of a task (named as `control.make` has it) for each seed.

    Raises:
        ValueError: unknown task or backend, no seeds, or a task that the backend does not have.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: choose one of {', '.join(BACKENDS)}")
    if not len(seeds):
        raise ValueError("seeds=[]: give at least one, a copy each")
    control.check_task(task)
    single = control.make(task, int(seeds[0]))
    if backend in ("auto", "together") and isinstance(single, control.GymEnvironment):
        lanes = side_by_side([single.gym, *(control.make(task, int(seed)).gym for seed in seeds[1:])])
        if isinstance(lanes, Together):
            return CopiesTogether(seeds, single, lanes)
    if backend in ("auto", "envpool") and (name := envpool_name(task)):
        return EnvPoolCopies(name, seeds, single)
    if backend in ("auto", "loop"):
        return CopiesInTurn([single, *(control.make(task, int(seed)) for seed in seeds[1:])])
    missing = "" if backend != "envpool" or find_spec("envpool") else "; pip install -c constraints.txt -e '.[envpool]'"
    raise ValueError(f"backend={backend!r}: it does not have the task {task!r}{missing}")


class _Copies:
    """What all backends share: the single environment's specs and names, and the checks of what it may not give."""

    backend: str

    def __init__(self, single: control.ControlEnvironment | control.GymEnvironment, count: int) -> None:
        self._single, self.count = single, count
        self._over = np.ones(count, bool)  # whose next step begins an episode

    def observation_spec(self) -> specs.Array:
        """Return one copy's observations."""
        return self._single.observation_spec()  # type: ignore[return-value]  # flat

    def action_spec(self) -> specs.Array:
        """Return one copy's actions."""
        return self._single.action_spec()

    def reward_spec(self) -> specs.Array:
        """Return a float32 scalar."""
        return self._single.reward_spec()

    def discount_spec(self) -> specs.BoundedArray:
        """Return a float32 scalar in [0, 1]."""
        return self._single.discount_spec()

    def reset(self) -> TimeSteps:
        """Start an episode in every copy."""
        self._over[:] = True
        return self.step(np.zeros((self.count, *self.action_spec().shape), self.action_spec().dtype))

    def step(self, actions: np.ndarray) -> TimeSteps:
        """Take one step in every copy, with counted actions [n] or canonical ones in [-1, 1], [n, k]."""
        raise NotImplementedError

    def close(self) -> None:
        """Close every copy."""
        self._single.close()

    def _checked(self, reward: Any, terminated: Any, truncated: Any, observation: np.ndarray) -> TimeSteps:
        """Return the timesteps of a step, `_over` being who began an episode in it, and note who ends one."""
        control.check_batch(observation, reward, self._single.task)
        ended = terminated | truncated
        step_type = np.where(self._over, FIRST, MID + ended)
        self._over = ended
        return TimeSteps(step_type, np.asarray(reward, np.float32), (~terminated).astype(np.float32), observation)


class CopiesTogether(_Copies):
    """Gymnasium environments that take all their steps at once."""

    backend = "together"

    def __init__(self, seeds: Sequence[int], single: control.GymEnvironment, lanes: Together) -> None:
        super().__init__(single, len(seeds))
        self._lanes, self._seeds = lanes, seeds
        self._scale = single.scaled
        self._started = False

    def step(self, actions: np.ndarray) -> TimeSteps:
        """Take one step in every copy, with counted actions [n] or canonical ones in [-1, 1], [n, k]."""
        if not self._started:
            self._started = True
            first, nobody = self._lanes.reset_all([int(seed) for seed in self._seeds]), np.zeros(self.count, bool)
            return self._checked(np.zeros(self.count), nobody, nobody, first.copy())
        over = self._over.tolist()
        steps = self._lanes.step(self._scale(actions), [lane for lane in range(self.count) if not over[lane]])
        for lane in range(self.count):
            if over[lane]:
                self._lanes.reset(lane)
        return self._checked(steps.rewards, steps.terminated, steps.truncated, steps.observations)

    def close(self) -> None:
        """Close every copy."""
        self._lanes.close()


class CopiesInTurn(_Copies):
    """Single environments, one after the other."""

    backend = "loop"

    def __init__(self, environments: Sequence[dm_env.Environment]) -> None:
        super().__init__(environments[0], len(environments))  # type: ignore[arg-type]
        self._environments = environments

    def reset(self) -> TimeSteps:
        """Start an episode in every copy."""
        return self._together([environment.reset() for environment in self._environments])

    def step(self, actions: np.ndarray) -> TimeSteps:
        """Take one step in every copy, with counted actions [n] or canonical ones in [-1, 1], [n, k]."""
        pairs = zip(self._environments, actions, strict=True)
        return self._together([environment.step(action) for environment, action in pairs])

    def close(self) -> None:
        """Close every copy."""
        for environment in self._environments:
            environment.close()

    def _together(self, timesteps: list[dm_env.TimeStep]) -> TimeSteps:
        return TimeSteps(
            np.array([int(timestep.step_type) for timestep in timesteps]),
            np.array([0.0 if timestep.reward is None else timestep.reward for timestep in timesteps], np.float32),
            np.array([1.0 if timestep.discount is None else timestep.discount for timestep in timesteps], np.float32),
            np.stack([timestep.observation for timestep in timesteps]),
        )


class EnvPoolCopies(_Copies):
    """EnvPool's environments, stepped by one thread of its own."""

    backend = "envpool"

    def __init__(self, name: str, seeds: Sequence[int], single: control.ControlEnvironment | control.GymEnvironment):
        import envpool

        super().__init__(single, len(seeds))
        bounded = [int(seed) % (2**31 - 1) for seed in seeds]  # EnvPool's are int32
        self._pool = envpool.make_dm(name, num_envs=len(seeds), num_threads=1, seed=bounded)
        self._limit = self._pool.config["max_episode_steps"]
        self._elapsed = np.zeros(len(seeds), int)
        self._names = single.observation_names
        self._scale = single.scaled
        self._started = False

    def step(self, actions: np.ndarray) -> TimeSteps:
        """Take one step in every copy, with counted actions [n] or canonical ones in [-1, 1], [n, k]."""
        anew = self._over.all()  # a reset in the midst of episodes too
        timestep = self._pool.reset() if anew else self._pool.step(self._scale(actions))
        first, last = timestep.step_type == FIRST, timestep.step_type == LAST
        self._elapsed = np.where(first, 0, self._elapsed + 1)
        # EnvPool's discount is 0 at a time limit as well.
        truncated = last & (self._elapsed >= self._limit)
        parts = [getattr(timestep.observation, name) for name in self._names]
        rows = [part.reshape(self.count, -1) for part in parts]
        observation = np.concatenate(rows, axis=1, dtype=np.float32)
        return self._checked(np.where(first, 0, timestep.reward), last & ~truncated, truncated, observation)

    def close(self) -> None:
        """Close every copy."""
        self._pool.close()
        super().close()


@functools.cache
def envpool_name(task: str) -> str | None:
    """Return EnvPool's name of a task; None without EnvPool, and for tasks not held against the original."""
    if find_spec("envpool") is None:
        return None
    import envpool

    suite, _, name = task.partition(":")
    if suite == "gym":
        spec = gymnasium.spec(registry.registered_name(name))
        module = str(spec.entry_point).partition(":")[0]
        built_in = name in CLASSIC and module.startswith("gymnasium.")
        return name if built_in and not spec.kwargs and name in envpool.list_all_envs() else None
    if name.partition(":")[0] not in CHECKED_DOMAINS:
        return None
    words = name.replace(":", "_").split("_")
    ours = "".join(word if word.isupper() else word.capitalize() for word in words) + "-v1"
    return ours if ours in envpool.list_all_envs() else None
