"""Every archive is played as its own library plays it, or refused with the reason: a grid without a third outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from toy_agents import ACTIONS, ALGORITHMS, BOX_ONLY, DISCRETE_ONLY, OBSERVATIONS, OPTIONS, make_model

from quarl_lib.inference.engines import BACKENDS, make_engine, unsupported
from quarl_lib.inference.pack import pack
from quarl_lib.sb3 import Agent, AgentError, AgentFile, load_agent, rollout
from quarl_lib.sb3.spec import agent_spec

STATES = 200


def cells() -> list[tuple[str, str, str, str]]:
    """Return (algorithm, observations, actions, options): spaces and options under every algorithm."""
    grid = []
    for algorithm in ALGORITHMS:
        takes = (
            {"discrete", "start"} if algorithm in DISCRETE_ONLY
            else {"box", "box-2d"} if algorithm in BOX_ONLY
            else {"discrete", "box", "unbounded", "half-bounded", "box-2d"} if algorithm == "ARS"
            else {"discrete", "start", "multi-discrete", "multi-binary"} if algorithm == "MaskablePPO"
            else set(ACTIONS)
        )  # fmt: skip
        first = "box" if algorithm in BOX_ONLY else "discrete"
        grid += [(algorithm, "vector", actions, "default") for actions in ACTIONS if actions in takes]
        grid += [(algorithm, "dict", actions, "relu") for actions in ACTIONS if actions in takes]
        if algorithm not in ("RecurrentPPO",):
            grid += [(algorithm, o, first, "default") for o in OBSERVATIONS if o != "vector"]
            grid += [(algorithm, "vector", first, name) for name in OPTIONS if name != "default"]
            grid += [(algorithm, "uint8-vector", first, "relu"), (algorithm, "discrete", first, "elu")]
    return list(dict.fromkeys(grid))


def observed(space: spaces.Space, count: int) -> Any:
    space.seed(1)
    met = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([each[key] for each in met]) for key in space.spaces}
    return np.stack([np.asarray(each) for each in met])


def outcome(cell: tuple[str, str, str, str], tmp_path: Path) -> str:
    """Return "played", "refused: ..." or "not trainable: ...", and fail on anything in between."""
    algorithm, observations, actions, option = cell
    env_id = f"Toy_{observations}_{actions}-v0"
    env = gymnasium.make(env_id, disable_env_checker=True)
    try:
        # The library trains on neither any more: archives that say so are older, or were edited.
        trained_on = {"start": "discrete", "unbounded": "box", "half-bounded": "box"}.get(actions, actions)
        made = gymnasium.make(f"Toy_{observations}_{trained_on}-v0", disable_env_checker=True)
        model = make_model(algorithm, made, dict(OPTIONS[option]))
        model.learn(16)
        model.action_space = model.policy.action_space = env.action_space
    except Exception as error:
        return f"not trainable: {error}"
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # actions of a hardly trained agent hardly differ from one another
        for parameter in model.policy.parameters():
            fan_in = parameter.shape[1:].numel() if parameter.ndim > 1 else 16
            scale = 0.02 if observations == "uint8-vector" else 1.0  # up to 255: outputs of float32's coarse range
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale * fan_in**-0.5)
    path = tmp_path / f"{env_id}.zip"
    model.save(path)
    try:
        agent = load_agent(AgentFile(algorithm.upper(), env_id, path, "sb3"))
    except AgentError as error:
        reason = str(error)
    else:
        reason = ""
    if reason:
        assert len(reason) > 20
        return f"refused: {reason}"
    met = observed(env.observation_space, STATES)
    options = {}
    seen = met
    if agent.flat is not None:
        each = [
            {key: values[i] for key, values in met.items()} if isinstance(met, dict) else met[i] for i in range(STATES)
        ]
        seen = np.stack([np.asarray(spaces.flatten(agent.flat, one)) for one in each])
    if agent.masked:
        masks = np.random.default_rng(0).integers(0, 2, (STATES, agent.policy.num_masked)).astype(np.int8)
        seen, options = np.concatenate([masks, seen], axis=1), {"action_masks": masks}
    expected = model.predict(met, deterministic=True, **options)[0]
    actual = agent.policy.act(agent.normalize(seen))
    assert same(actual, expected, agent, seen), (cell, np.abs(actual - expected).max())
    assert len(rollout(agent, agent.policy, 6, 0)) == 6  # in the environment itself
    play_engines(agent, seen, expected, cell)
    return "played"


def same(actual: Any, expected: np.ndarray, agent: Agent, met: np.ndarray) -> bool:
    actual = np.asarray(actual)
    if not agent.policy.discrete:
        return bool(np.allclose(actual.reshape(expected.shape), expected, atol=1e-5, rtol=1e-5))
    with torch.no_grad():
        outputs = agent.policy(torch.from_numpy(agent.normalize(met))).numpy()
    best = [np.sort(logits, axis=-1)[:, -2:] for logits in agent.policy.categories(outputs)]
    gaps = np.stack([two[:, 1] - two[:, 0] for two in best], axis=-1).reshape(expected.shape)
    allowed = np.abs(outputs[outputs > -1e7]).max()
    clear = gaps > 1e-4 * allowed
    if agent.masked:
        return bool((actual == expected)[clear].all())  # where all or none is masked, the first of equals
    return bool((actual == expected)[clear].all()) and bool(clear.mean() > 0.9)


def play_engines(agent: Agent, met: np.ndarray, expected: np.ndarray, cell: tuple[str, ...]) -> None:
    try:
        spec, weights = agent_spec(agent)
    except ValueError:
        return  # engines do not take it, and say so
    for backend in BACKENDS:
        if unsupported(spec, "fp32", backend) is not None:
            continue
        engine = make_engine(spec, "fp32", backend)
        engine.load(pack(spec, weights, "fp32"))
        assert same(engine(met), expected, agent, met), (cell, backend)


FAST = [
    ("PPO", "vector", "discrete", "own-tanh"), ("PPO", "vector", "discrete", "own-extractor"),
    ("PPO", "uint8-vector", "discrete", "default"), ("A2C", "vector", "unbounded", "default"),
    ("DQN", "vector", "start", "default"), ("SAC", "vector", "box", "linear"), ("TD3", "vector", "box", "default"),
    ("TQC", "vector", "box", "default"), ("QRDQN", "vector", "discrete", "default"),
    ("ARS", "vector", "box", "default"), ("TRPO", "vector", "box", "default"),
    ("RecurrentPPO", "vector", "discrete", "default"), ("PPO", "dict", "multi-discrete", "relu"),
    ("A2C", "vector", "multi-binary", "default"), ("MaskablePPO", "dict", "multi-binary", "relu"),
    ("SAC", "dict-mixed", "box", "default"), ("A2C", "vector", "box-2d", "default"),
]  # fmt: skip
MUST_PLAY = {cell for cell in FAST if cell[0] != "RecurrentPPO" and not cell[3].startswith("own")}


@pytest.mark.parametrize("cell", FAST, ids="-".join)
def test_an_archive_is_played_as_by_its_library_or_refused(cell: tuple[str, str, str, str], tmp_path: Path) -> None:
    found = outcome(cell, tmp_path)
    assert found == "played" if cell in MUST_PLAY else found.startswith("refused")


@pytest.mark.slow
def test_no_cell_of_the_grid_has_a_third_outcome(tmp_path: Path) -> None:
    grid = cells()
    found, third = [], []
    for number, cell in enumerate(grid):
        (tmp_path / str(number)).mkdir()
        try:
            found.append(outcome(cell, tmp_path / str(number)))
        except AssertionError as error:
            third.append(f"{cell}: {str(error)[:200]}")
    assert not third, "\n".join(third)
    tried = [each for each in found if not each.startswith("not trainable")]
    print(f"{len(tried)} cells: {tried.count('played')} played, {len(tried) - tried.count('played')} refused")  # noqa: T201
    assert len(tried) >= 150
    assert tried.count("played") >= 80


SPREADS = {"near": (5.0, 1.0), "narrow": (1e-1, 1e-3), "far": (1e4, 1e-3), "wide": (-1e4, 1e3)}  # mean, deviation


def play_with_statistics(algorithm: str, observations: str, spread: str, folder: Path) -> None:
    """Play an agent trained on normalised observations, in simulation and with every engine."""
    actions = "box" if algorithm in BOX_ONLY else "discrete"
    env_id = f"Toy_{observations}_{actions}-v0"
    env = gymnasium.make(env_id, disable_env_checker=True)
    model = make_model(algorithm, env, {"net_arch": [16]})
    normalized = VecNormalize(DummyVecEnv([lambda: env]), clip_obs=3.0)
    mean, deviation = SPREADS[spread]
    generator = np.random.default_rng(0)
    met: Any = {}
    statistics: Any = normalized.obs_rms
    parts = statistics if isinstance(statistics, dict) else {"": statistics}
    for key, part in parts.items():
        part.mean = mean * generator.uniform(0.5, 1, part.mean.shape)
        part.var = (deviation * generator.uniform(1, 2, part.mean.shape)) ** 2
        values = part.mean + np.sqrt(part.var) * generator.normal(size=(STATES, *part.mean.shape))
        space = env.observation_space[key] if key else env.observation_space  # type: ignore[index]
        met[key] = values.astype(space.dtype)
    met = met if isinstance(statistics, dict) else met[""]
    model.save(folder / f"{env_id}.zip")
    normalized.save(str(folder / "vec_normalize.pkl"))
    agent = load_agent(AgentFile(algorithm, env_id, folder / f"{env_id}.zip", "sb3"))
    seen = np.concatenate([met[key] for key in met], axis=1) if isinstance(met, dict) else met
    expected = model.predict(normalized.normalize_obs(met), deterministic=True)[0]
    assert same(agent.policy.act(agent.normalize(seen)), expected, agent, seen)
    agent_spec(agent)  # engines take each of them
    play_engines(agent, seen, expected, (algorithm, observations, spread))


@pytest.mark.parametrize(
    ("observations", "spread"),
    [("float64", "far"), ("float64", "narrow"), ("vector", "wide"), ("vector", "far"), ("dict", "near")],
)
def test_statistics_are_subtracted_in_double(observations: str, spread: str, tmp_path: Path) -> None:
    play_with_statistics("PPO", observations, spread, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("observations", ["vector", "float64", "dict"])
@pytest.mark.parametrize("spread", SPREADS)
def test_no_statistics_have_a_third_outcome(observations: str, spread: str, tmp_path: Path) -> None:
    for algorithm in ("A2C", "TRPO", "DQN", "QRDQN", "DDPG", "TD3", "SAC", "TQC"):
        (tmp_path / algorithm).mkdir()
        play_with_statistics(algorithm, observations, spread, tmp_path / algorithm)
