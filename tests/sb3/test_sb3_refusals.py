"""Files as strangers have them: played, or refused with words that name what is wrong; nothing else comes out."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl_lib.sb3 import SHIPPED_AGENTS, AgentError, AgentFile, find_agents, load_agent
from quarl_lib.sb3.archive import read_normalization, read_yaml

GOOD = SHIPPED_AGENTS / "ppo" / "CartPole-v1"
Weights = dict[Any, torch.Tensor]


def archive(path: Path, data: str | None = None, change: Callable[[Weights], Any] | None = None) -> AgentFile:
    """Write the shipped archive with other settings or weights."""
    with zipfile.ZipFile(GOOD / "CartPole-v1.zip") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "data" and data is not None:
                content = data.encode()
            if name == "policy.pth" and change is not None:
                stored = io.BytesIO()
                torch.save(change(torch.load(io.BytesIO(content), weights_only=True)), stored)
                content = stored.getvalue()
            target.writestr(name, content)
    return AgentFile("PPO", "CartPole-v1", path, "sb3")


def refusal(file: AgentFile) -> str:
    """Return why an agent is refused, "" if it is not; any other exception comes out."""
    try:
        load_agent(file)
    except AgentError as error:
        return str(error)
    return ""


def said(**changes: object) -> str:
    """Return the shipped archive's settings with some changed."""
    with zipfile.ZipFile(GOOD / "CartPole-v1.zip") as source:
        return json.dumps({**json.loads(source.read("data")), **changes})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("[1, 2]", "the settings are a list"),
        ("42", "the settings are a int"),
        (said(policy_kwargs=[1]), "policy_kwargs is a list, not a dictionary"),
        (
            said(policy_kwargs={"activation_fn": "<class 'my.Tanh'>"}),
            r"activation <class 'my\.Tanh'> is none of torch's",
        ),
        (said(policy_kwargs={"features_extractor_class": "<class 'my.FlattenExtractor'>"}), "extractor <class 'my"),
        (said(policy_kwargs={"features_extractor_class": "<class 'my.NatureCNN'>"}), "extractor <class 'my"),
        (said(policy_kwargs={"my_option": 1}), "'my_option', which is not known"),
        (said(policy_class={":serialized:": 7}), "does not say its policy class"),
        (said(policy_class=None), "does not say its policy class"),
        (said(use_sde="perhaps"), "use_sde is 'perhaps', neither True nor False"),
    ],
)
def test_settings_that_are_not_the_librarys_are_named(data: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=reason):
        load_agent(archive(tmp_path / "a.zip", data))


WEIGHTS: dict[str, tuple[Callable[[Weights], Any], str]] = {
    "integer keys": (lambda w: dict(enumerate(w.values())), "not a dictionary of tensors"),
    "a list": (lambda w: list(w.values()), "not a dictionary of tensors"),
    "transposed": (
        lambda w: {**w, "action_net.weight": w["action_net.weight"].T.contiguous()},
        r"action_net is no linear layer: its weight is \(64, 2\) with a bias of \(2,\)",
    ),
    "complex": (lambda w: {**w, "action_net.bias": w["action_net.bias"] + 1j}, "action_net.bias in policy.pth"),
    "one more layer": (lambda w: {**w, "my.weight": torch.eye(2)}, "weights hold my.weight, which"),
    "one fewer": (lambda w: {n: v for n, v in w.items() if n != "action_net.weight"}, "hold no action_net.weight"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_not_the_librarys_are_named(name: str, tmp_path: Path) -> None:
    change, reason = WEIGHTS[name]
    with pytest.raises(AgentError, match=reason):
        load_agent(archive(tmp_path / "a.zip", change=change))


def test_layers_without_bias_play(tmp_path: Path) -> None:
    zeroed = archive(tmp_path / "z.zip", change=lambda w: {**w, "action_net.bias": 0 * w["action_net.bias"]})
    without = archive(tmp_path / "b.zip", change=lambda w: {n: v for n, v in w.items() if n != "action_net.bias"})
    met = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(load_agent(without).policy.act(met), load_agent(zeroed).policy.act(met))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    whole = bytearray((GOOD / "CartPole-v1.zip").read_bytes())
    with zipfile.ZipFile(GOOD / "CartPole-v1.zip") as source:
        for member in source.infolist():
            whole[member.header_offset + 6] |= 1
    place = -1
    while (place := whole.find(b"PK\x01\x02", place + 1)) >= 0:
        whole[place + 8] |= 1
    path = tmp_path / "locked.zip"
    path.write_bytes(whole)
    with pytest.raises(AgentError, match=r"locked\.zip cannot be opened: .*password"):
        load_agent(AgentFile("PPO", "CartPole-v1", path, "sb3"))


@pytest.mark.parametrize("name", ["config.yml", "env_kwargs.yml", "args.yml"])
@pytest.mark.parametrize(
    "content", ["hello", "42", "1: 2", "[]", "- [a]", "normalize: [1, 2]", "{", "!!python/name:os.system"]
)
def test_files_beside_an_archive_may_hold_anything(name: str, content: str, tmp_path: Path) -> None:
    folder = tmp_path / "ppo" / "CartPole-v1"
    shutil.copytree(GOOD, folder)
    (folder / name).write_text(content)
    (file,) = find_agents(tmp_path)
    reason = refusal(file)
    assert reason == "" or len(reason) > 20
    if name == "args.yml":  # read only where the folders do not name the algorithm
        assert reason == ""


PLAIN = {"W0": np.eye(3, 4), "b0": np.zeros(3), "W1": np.ones((2, 3)), "b1": np.zeros(2)}
SAID = {"kind": "cat", "acts": ["relu", "id"], "time_feature": False}
STATISTICS = {"norm_mean": np.zeros(4), "norm_std": np.ones(4), "norm_clip": np.array(10.0)}


def plain(folder: Path, arrays: dict[str, Any], description: Any) -> AgentFile:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "actor.npz", **arrays)
    (folder / "actor.json").write_text(json.dumps(description))
    return AgentFile("A2C", "CartPole-v1", folder, "arrays")


@pytest.mark.parametrize(
    ("arrays", "description", "reason"),
    [
        ({**PLAIN, **STATISTICS, "norm_var": np.ones(4)}, SAID, "norm_var: statistics are norm_mean, norm_std"),
        ({**PLAIN, "norm_mean": np.zeros(4)}, SAID, "hold norm_mean: statistics are"),
        ({**PLAIN, **STATISTICS, "norm_std": np.zeros(4)}, SAID, "deviation or the clip is not positive"),
        ({**PLAIN, **STATISTICS, "norm_mean": np.zeros(3)}, SAID, r"mean has shape \(3,\), observations have \(4,\)"),
        ({**PLAIN, "W0": PLAIN["W0"].T}, SAID, r"b0 has shape \(3,\): its first axis must be 4"),
        ({**PLAIN, "W1": PLAIN["W1"].ravel()}, SAID, "W1 has shape .*give 2 axes"),
        ({**PLAIN, "W1": PLAIN["W1"] * 1j}, SAID, "W1 holds complex128"),
        ({**PLAIN, "W1": PLAIN["W1"] * np.nan}, SAID, r"W1\[0, 0\] is not finite"),
        ({**PLAIN, "W2": np.eye(2)}, SAID, "the arrays hold W2, which a policy of 2 layers has not"),
        (PLAIN, {**SAID, "acts": []}, r"acts is \[\]"),
        (PLAIN, {**SAID, "acts": [[], 1]}, r"acts is \[\[\], 1\]"),
        (PLAIN, {**SAID, "acts": ["relu", "tanh"]}, "behind the last layer of kind 'cat' stands 'id'"),
        (PLAIN, {**SAID, "kind": ["cat"]}, "kind .* is none of"),
        (PLAIN, [1], "actor.json holds a list"),
    ],
)
def test_plain_arrays_of_others_are_refused_by_name(
    arrays: dict[str, Any], description: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(AgentError, match=reason):
        load_agent(plain(tmp_path / "a2c" / "CartPole-v1", arrays, description))


def test_foreign_arrays_beside_an_archive_leave_it_alone(tmp_path: Path) -> None:
    folder = tmp_path / "ppo" / "CartPole-v1"
    shutil.copytree(GOOD, folder)
    np.savez(folder / "evaluations.npz", results=np.ones(3))
    (file,) = find_agents(tmp_path)
    assert file.layout == "sb3"
    assert load_agent(file).warning == ""


def statistics(path: Path, env_id: str = "CartPole-v1", **changes: Any) -> Path:
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make(env_id)]))
    for name, value in changes.items():
        setattr(env.obs_rms if name in ("mean", "var") else env, name, value)
    env.save(str(path))
    return path


@pytest.mark.parametrize("name", ["vecnormalize.pkl", "vec_normalize.pkl"])
def test_statistics_count_by_either_name_and_must_have_the_observations_shape(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "ppo-CartPole-v1"
    shutil.copytree(GOOD, folder)
    statistics(folder / name, mean=np.array([1.0, 2, 3, 4]), var=np.array([4.0, 0, 1, 1]))
    (file,) = find_agents(tmp_path)
    agent = load_agent(file)
    assert agent.statistics == name
    # (3 - 1) / 2 = 1; a deviation of zero is the root of the library's epsilon, 1e-4: 0.0001 above the mean is one.
    np.testing.assert_allclose(agent.normalize(np.array([[3.0, 2.0001, 3, 4]])), [[1, 1, 0, 0]], rtol=1e-4, atol=1e-7)
    statistics(folder / name, env_id="Pendulum-v1")
    with pytest.raises(AgentError, match=r"mean has shape \(3,\), observations have \(4,\)"):
        load_agent(file)


def test_a_zero_deviation_without_epsilon_is_refused(tmp_path: Path) -> None:
    path = statistics(tmp_path / "vecnormalize.pkl", var=np.array([0.0, 1, 1, 1]), epsilon=0.0)
    with pytest.raises(AgentError, match="a deviation of 0 leaves nothing to divide by"):
        read_normalization(path)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [" + ", ".join([f"*{before}"] * 9) + "]" for before, name in itertools.pairwise("abcdefghij")
)


@pytest.mark.parametrize("text", [BOMB + "\nenv_wrapper: *j", "env_wrapper: &a [*a]", "a: [" + "1, " * 100_000 + "]"])
def test_a_configuration_that_unfolds_without_end_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(text)
    with pytest.raises(AgentError, match=r"config\.yml (names the same parts so often|has \d+ bytes)"):
        read_yaml(path)


def test_arrays_that_unfold_to_gigabytes_are_refused(tmp_path: Path) -> None:
    file = plain(tmp_path / "a2c" / "CartPole-v1", PLAIN, SAID)
    with zipfile.ZipFile(file.path / "actor.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("W0.npy", bytes(30_000_000))
    with pytest.raises(AgentError, match=r"actor\.npz would unfold to 30000000 bytes"):
        load_agent(file)


def test_statistics_larger_than_their_file_are_refused(tmp_path: Path) -> None:
    path = statistics(tmp_path / "vecnormalize.pkl", mean=LARGE)
    with pytest.raises(AgentError, match="statistics larger than itself"):
        read_normalization(path)


class Large:
    """Its pickle asks for an array of a gigabyte in a few bytes."""

    def __reduce__(self):
        return np.ndarray, ((10**9,), np.dtype("u1"))


LARGE: Any = Large()


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flipped=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=3), cut=st.integers(0, 60))
def test_mutated_statistics_are_read_or_an_agent_error(
    tmp_path: Path, flipped: list[tuple[int, int]], cut: int
) -> None:
    path = tmp_path / "vecnormalize.pkl"
    whole = bytearray(statistics(path).read_bytes())
    for place, value in flipped:
        whole[place % len(whole)] = value
    path.write_bytes(whole[: len(whole) - cut])
    try:
        assert read_normalization(path) is None or read_normalization(path).mean.shape == (4,)  # type: ignore[union-attr]
    except AgentError as error:
        reason = str(error)
        assert len(reason) > 10


ARRAY = st.lists(st.integers(0, 4), max_size=3).map(lambda shape: np.ones(shape)) | st.sampled_from(
    [np.array("a"), np.array(1j), np.full((2, 3), np.nan), np.array(True)]
)
VALUE = st.none() | st.integers() | st.text(max_size=4) | st.lists(st.sampled_from(["relu", "id", 1, None]), max_size=3)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrays=st.dictionaries(st.sampled_from([*PLAIN, *STATISTICS, "W2", "ln_gamma0", "log_std"]), ARRAY, max_size=3),
    description=st.dictionaries(st.sampled_from([*SAID]), VALUE, max_size=2),
)
def test_mutated_arrays_load_or_are_agent_errors(
    tmp_path: Path, arrays: dict[str, Any], description: dict[str, Any]
) -> None:
    file = plain(tmp_path / "a2c" / "CartPole-v1", {**PLAIN, **arrays}, {**SAID, **description})
    assert refusal(file) == "" or len(refusal(file)) > 10
