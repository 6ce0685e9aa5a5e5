"""What an export starts from: a live model, an archive, a hub folder, a folder of arrays, or a loaded agent."""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from quarl_lib.deploy.draws import Draws
from quarl_lib.inference.spec import PolicySpec, Weights
from quarl_lib.sb3 import SHIPPED_AGENTS, Agent, AgentFile, find_agents, load_agent
from quarl_lib.sb3.archive import Normalization, read_normalization
from quarl_lib.sb3.build import ALGORITHMS
from quarl_lib.sb3.policy import ActingPolicy, ConstantSpread
from quarl_lib.sb3.spec import agent_spec

# Where Stable-Baselines3 keeps a policy's class, which an archive names in plain text.
POLICY_MODULES = {"dqn.policies": "DQN", "td3.policies": "TD3", "sac.policies": "SAC"}


@dataclass(frozen=True)
class Source:
    """An agent and what a deployed policy takes from it."""

    agent: Agent
    spec: PolicySpec
    weights: Weights
    observation_shape: tuple[int, ...]
    action_shape: tuple[int, ...]
    draws: Draws
    card: dict[str, Any]
    trained_at: str = ""  # the precision whose grid a live model trained on under fake quantization

    def check_precision(self, precision: str) -> None:
        """Raise ValueError for another precision than the model's own: it never acted so in training."""
        if self.trained_at and precision != self.trained_at:
            raise ValueError(
                f"precision={precision!r}: {self.card['source']} trained on the grid of {self.trained_at}; give that, "
                "or `quarl_lib.sb3.qat_export.plain_model` of it to quantize its weights anew"
            )


def read_source(model_or_path: Any, *, vec_normalize: Any = None, env_id: str | None = None) -> Source:
    """Return what `QuantizedPolicy.from_sb3` and the exports need; see there."""
    action_space: Any
    trained_at = ""
    if isinstance(model_or_path, Agent):
        agent, name, action_space = model_or_path, model_or_path.name, None
    elif isinstance(model_or_path, AgentFile | str | Path):
        file = model_or_path if isinstance(model_or_path, AgentFile) else find_agent(model_or_path, env_id)
        agent, name, action_space = _loaded(file), f"{file.name} ({file.path.name})", None
    else:
        agent, trained_at = _of_model(model_or_path, env_id)
        name, action_space = f"live {type(model_or_path).__name__} model", model_or_path.action_space
    if vec_normalize is not None:
        agent = dataclasses.replace(agent, normalization=_statistics(vec_normalize))
    spec, weights = agent_spec(agent)
    if action_space is None:
        env = agent.make_env()
        action_space = env.action_space
        env.close()
    shape = () if isinstance(action_space, spaces.Discrete) else tuple(action_space.shape or ())
    card = {"source": name, "algorithm": agent.algorithm, "env_id": agent.env_id}
    observation_shape = tuple(agent.observation_space.shape or ())
    return Source(agent, spec, weights, observation_shape, shape, _draws(agent.policy), card, trained_at)


def find_agent(path: str | Path, env_id: str | None = None) -> AgentFile:
    """Return the agent that a path means: an archive, a folder with one, or `ppo/CartPole-v1` of those in the package.

    Algorithm and environment come from the names around it, as in `find_agents`, or from `args.yml`; the algorithm also
    from what the archive says of itself.

    Raises:
        ValueError: there is no agent, more than one, or nothing says its environment.
    """
    path = Path(path).expanduser()
    if not path.exists() and re.fullmatch(r"\w+/[\w./-]+", str(path)) and (SHIPPED_AGENTS / path).is_dir():
        path = SHIPPED_AGENTS / path
    if not path.exists():
        raise ValueError(f"{path} does not exist; give an archive, a folder with one, or one of {_shipped()}")
    found = find_agents(path)
    if len(found) != 1:
        raise ValueError(f"{path} holds {', '.join(file.path.name for file in found)}; name the archive itself")
    file = found[0]
    if file.algorithm in ALGORITHMS:
        return dataclasses.replace(file, env_id=env_id or file.env_id)
    if not env_id:  # what no algorithm stands beside is no environment's name
        raise ValueError(f"{file.path.name}: nothing says which environment it was trained on; give env_id")
    return dataclasses.replace(file, algorithm=_algorithm_inside(file.path), env_id=env_id)


def _algorithm_inside(archive: Path) -> str:
    """Return the algorithm whose policy class the archive names; what acts in A2C and PPO, DDPG and TD3 is the same."""
    try:
        with zipfile.ZipFile(archive) as stored:
            settings = json.loads(stored.read("data"))
        module = str(settings["policy_class"]["__module__"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{archive.name} is no Stable-Baselines3 archive that can be read: {error}") from error
    for ending, algorithm in POLICY_MODULES.items():
        if module == f"stable_baselines3.{ending}":
            return algorithm
    if module == "stable_baselines3.common.policies":
        return "PPO" if "clip_range" in settings else "A2C"
    raise ValueError(f"{archive.name} holds a policy of {module}; put it into <algorithm>/<environment>/")


def _shipped() -> str:
    return ", ".join("/".join(path.parts[-2:]) for path in sorted(SHIPPED_AGENTS.glob("*/*")))


def _loaded(file: AgentFile) -> Agent:
    agent = load_agent(file)
    if agent.normalization is None and "normalised observations" in agent.warning:
        raise ValueError(f"{agent.name}: {agent.warning}; give vec_normalize")
    return agent


def _of_model(model: Any, env_id: str | None) -> tuple[Agent, str]:
    """Return a live model as an agent, and the precision whose grid it trained on, "" for none."""
    from quarl_lib.sb3.qat_export import trained_agent, trained_precision  # imports Stable-Baselines3

    if not hasattr(model, "policy"):
        raise ValueError(f"{type(model).__name__} is no agent: give a Stable-Baselines3 model, a path or an agent")
    if env_id is None:
        envs = model.get_env()
        specs = [] if envs is None else [getattr(each, "id", None) for each in envs.get_attr("spec")]
        env_id = next((name for name in specs if name), "")
    return trained_agent(model, env_id), trained_precision(model)


def _statistics(vec_normalize: Any) -> Normalization | None:
    if isinstance(vec_normalize, str | Path):
        return read_normalization(Path(vec_normalize))
    from quarl_lib.sb3.qat_export import statistics_of

    return statistics_of(vec_normalize)


def _draws(policy: ActingPolicy) -> Draws:
    if policy.kind == "categorical":
        return Draws("categorical")
    if policy.kind == "q_values":
        return Draws("", reason="a Q network has no distribution; explore with random actions of the environment")
    if policy.kind == "deterministic":
        return Draws("")
    if isinstance(policy.spread, ConstantSpread) and not policy.squash:
        log_std = policy.spread.log_std.numpy()
        return Draws("gaussian", tuple(np.broadcast_to(log_std, policy.low.shape).astype(float).tolist()))
    return Draws("", reason="its deviation depends on the state (SAC, gSDE), which engines do not compute")
