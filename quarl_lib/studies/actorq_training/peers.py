"""What a user would pick instead: Stable-Baselines3 at its own defaults, on the same task, to the same threshold.

Of ours it takes what is not its own affair: layer sizes, batch size, task, seed, and how often and how it is evaluated.
Its clock begins with its first step and stands still while it is evaluated; ActorQ's begins before its processes do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from quarl_lib.actorq.actor.evaluator import EVALUATION_SEED, Threshold
from quarl_lib.actorq.config import Config as Options
from quarl_lib.envs import control
from quarl_lib.provenance import allowed_cores
from quarl_lib.studies.actorq_training import finished

PEERS = {"sb3_sac": "SAC", "sb3_td3": "TD3", "sb3_dqn": "DQN"}
DISCRETE = ("sb3_dqn",)
EVALUATION, PEER = "peer_evaluation", "peer"  # column `record`


@dataclass(frozen=True)
class PeerRun:
    """One training with Stable-Baselines3, beside an ActorQ run with `options`.

    `max_seconds` 0 sets no limit; `threads` are PyTorch's, 0 for its default, one a core.
    """

    peer: str
    options: Options
    max_seconds: float
    threads: int

    @property
    def name(self) -> str:
        """Return a name for the run's folder."""
        return f"{self.options.task.replace(':', '-')}_{self.peer}_seed{self.options.seed}"


def check(peers: list[str], peer_seeds: list[int], seeds: list[int], peer_times: float, peer_threads: int) -> None:
    """Raise ValueError for an unknown peer, a seed that is none of ours, or a limit that is none."""
    if unknown := [peer for peer in peers if peer not in PEERS]:
        raise ValueError(f"peers={peers}: {unknown[0]!r} is unknown; choose among {', '.join(PEERS)}, or none")
    if len({*peers}) < len(peers):
        raise ValueError(f"peers={peers}: give each once")
    if peers and (not peer_seeds or {*peer_seeds} - {*seeds} or len({*peer_seeds}) < len(peer_seeds)):
        raise ValueError(f"peer_seeds={peer_seeds}: give some of seeds={seeds}, each once; ratios are paired by seed")
    if not 0 <= peer_times < np.inf or peer_threads < 0:
        raise ValueError(f"peer_times={peer_times}, peer_threads={peer_threads}: give at least 0, 0 for no limit")


def beside(config: Any, options: Options, seconds: float) -> Iterator[PeerRun]:
    """Name the peers that a study's config has beside an ActorQ run of so many seconds: those that suit its actions.

    They are given up after `peer_times` as long, so that on any machine a ratio up to that is told. None stands beside
    a run in virtual time: a peer's clock is a real one.
    """
    if options.seed in config.peer_seeds and getattr(config, "launcher", "local") != "virtual":
        for peer in config.peers:
            if (peer in DISCRETE) == control.is_discrete(options.task):
                yield PeerRun(peer, options, config.peer_times * seconds, config.peer_threads)


def tables(
    config: Any, options: Options, seconds: float, folder: Path, say: Callable[[str], None]
) -> list[pd.DataFrame]:
    """Return what `train` gave for every peer beside an ActorQ run; what an interrupted call finished is kept."""
    found = []
    for run in beside(config, options, seconds):
        table = finished.load(folder / run.name, run)
        if table is None:
            table = train(run, say)
            finished.save(folder / run.name, run, table)
        found.append(table)
    return found


def train(run: PeerRun, report: Callable[[str], None] = lambda said: None) -> pd.DataFrame:
    """Train until the threshold is confirmed, the actor steps are taken or the time is up.

    Returns:
        A row per evaluation episode (record "peer_evaluation": task, peer, seed, actor_steps, wall_time_s, episode,
        episode_return) and one of record "peer" (needed, actor_steps and wall_time_s at the end).
    """
    import torch
    from stable_baselines3.common.callbacks import BaseCallback

    from quarl_lib.envs.as_gym import AsGym
    from quarl_lib.sb3.logs import log_nowhere

    options = run.options
    threshold = Threshold(options.stop_return, options.stop_evaluations)
    rows: list[dict[str, Any]] = []

    class Watch(BaseCallback):
        """Evaluates at the steps at which ActorQ's learner leaves its policy."""

        begin = stood_still = seconds = 0.0

        def _on_training_start(self) -> None:
            self.begin = time.perf_counter()

        def _on_step(self) -> bool:
            self.seconds = time.perf_counter() - self.begin - self.stood_still
            goes_on = not run.max_seconds or self.seconds < run.max_seconds
            if self.num_timesteps % options.eval_period == 0:
                evaluator = AsGym(control.make(options.task, EVALUATION_SEED))  # the same starting states each time
                returns = [_play(self.model, evaluator) for _ in range(options.eval_episodes)]
                evaluator.close()
                when = {"record": EVALUATION, "actor_steps": self.num_timesteps, "wall_time_s": self.seconds}
                rows.extend({**when, "episode": i, "episode_return": value} for i, value in enumerate(returns))
                report(f"{options.task} {run.peer} {self.num_timesteps} steps")
                goes_on = goes_on and not threshold.confirmed(float(np.mean(returns)))
                self.stood_still = time.perf_counter() - self.begin - self.seconds
            return goes_on

    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads or allowed_cores())
    try:
        watch = Watch()
        model = log_nowhere(_model(run, AsGym(control.make(options.task, options.seed))))
        model.learn(options.actor_steps, callback=watch)
    finally:
        torch.set_num_threads(threads)
    rows.append({"record": PEER, "needed": options.stop_evaluations, "wall_time_s": watch.seconds,
                 "actor_steps": watch.num_timesteps})  # fmt: skip
    return pd.DataFrame(rows).assign(task=options.task, peer=run.peer, seed=options.seed)


def _model(run: PeerRun, environment: Any) -> Any:
    import stable_baselines3

    options, algorithm = run.options, getattr(stable_baselines3, PEERS[run.peer])
    policy, critic = list(options.policy_hidden), list(options.critic_hidden)
    layers: Any = policy if run.peer in DISCRETE else {"pi": policy, "qf": critic}
    return algorithm("MlpPolicy", environment, batch_size=options.batch_size, seed=options.seed, device=options.device,
                     policy_kwargs={"net_arch": layers})  # fmt: skip


def _play(model: Any, environment: Any) -> float:
    observation, _ = environment.reset()
    episode_return, ended = 0.0, False
    while not ended:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = environment.step(action)
        episode_return, ended = episode_return + reward, terminated or truncated
    return episode_return
