"""Reading agents runs nothing that was pickled into them, and damage is a reason in words."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from quarl_lib.envs import gym as environments
from quarl_lib.sb3.archive import AgentError, read_archive, read_normalization, read_yaml


class TouchesFile:
    """Its pickle creates a file when it is run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def tensors() -> bytes:
    stored = io.BytesIO()
    torch.save({"action_net.weight": torch.eye(2)}, stored)
    return stored.getvalue()


def write_archive(path: Path, data: dict | str, policy: bytes, **members: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", data if isinstance(data, str) else json.dumps(data))
        archive.writestr("policy.pth", policy)
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_pickled_settings_are_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "touched"
    pickled = base64.b64encode(cloudpickle.dumps(TouchesFile(trap))).decode()
    settings = {"policy_class": {":type:": "x", ":serialized:": pickled}, "use_sde": True}
    archive = read_archive(write_archive(tmp_path / "a.zip", settings, tensors(), _stable_baselines3_version="1.3\n"))
    assert not trap.exists()
    assert archive.settings["use_sde"] is True
    assert archive.version == "1.3"
    assert archive.weights["action_net.weight"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    cloudpickle.loads(base64.b64decode(pickled))  # the trap works
    assert trap.exists()


def test_weights_that_hold_code_are_refused(tmp_path: Path) -> None:
    trap, stored = tmp_path / "touched", io.BytesIO()
    torch.save({"weight": TouchesFile(trap)}, stored)
    with pytest.raises(AgentError, match="more than weights and was not run"):
        read_archive(write_archive(tmp_path / "a.zip", {}, stored.getvalue()))
    assert not trap.exists()


def test_statistics_that_hold_code_are_refused(tmp_path: Path) -> None:
    trap, path = tmp_path / "touched", tmp_path / "vecnormalize.pkl"
    path.write_bytes(pickle.dumps(TouchesFile(trap)))
    with pytest.raises(AgentError, match=r"ask for pathlib\.Path\.touch, which was not run"):
        read_normalization(path)
    assert not trap.exists()


@pytest.mark.parametrize("module", ["os", "numpy.f2py", "numpy.testing", "builtins", "stable_baselines3.commonplace"])
def test_statistics_may_name_arrays_and_stubs_only(tmp_path: Path, module: str) -> None:
    path = tmp_path / "vecnormalize.pkl"
    path.write_bytes(f"c{module}\nsystem\n(S'true'\ntR.".encode())
    with pytest.raises(AgentError, match=f"ask for {module}.system"):
        read_normalization(path)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9, 0.999])
def test_an_archive_cut_short_is_a_reason(tmp_path: Path, kept: float) -> None:
    whole = write_archive(tmp_path / "whole.zip", {"policy_kwargs": {}}, tensors()).read_bytes()
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(AgentError, match=r"cut\.zip is damaged or cut short"):
        read_archive(cut)


def test_flipped_bytes_in_an_archive_are_a_reason(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.zip", {}, tensors())
    content = bytearray(path.read_bytes())
    place = content.index(b"policy.pth") + 40
    content[place : place + 8] = bytes(byte ^ 0xFF for byte in content[place : place + 8])
    path.write_bytes(content)
    with pytest.raises(AgentError, match="damaged"):
        read_archive(path)


def test_what_is_no_archive_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="not JSON"):
        read_archive(write_archive(tmp_path / "a.zip", "{", tensors()))
    with pytest.raises(AgentError, match=r"policy\.pth is damaged"):
        read_archive(write_archive(tmp_path / "a.zip", {}, tensors()[:500]))
    empty = tmp_path / "empty.zip"
    zipfile.ZipFile(empty, "w").close()
    with pytest.raises(AgentError, match=r"data and policy\.pth missing"):
        read_archive(empty)


def test_normalization_is_that_of_stable_baselines3(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([lambda: environments.make("Pendulum-v1")]), clip_obs=1.5)
    env.seed(0)
    env.reset()
    for _ in range(20):
        env.step(np.zeros((1, 1), np.float32))
    path = tmp_path / "vecnormalize.pkl"
    env.save(str(path))
    observations = np.random.default_rng(0).normal(size=(50, 3)) * [1, 1, 8]
    normalization = read_normalization(path)
    assert normalization is not None
    actual = normalization(observations)
    np.testing.assert_array_equal(actual, env.normalize_obs(observations))  # type: ignore[arg-type]
    assert actual.dtype == np.float32
    assert np.abs(actual).max() == 1.5
    env.norm_obs = False
    env.save(str(path))
    assert read_normalization(path) is None


def test_statistics_cut_short_are_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "vecnormalize.pkl"
    path.write_bytes(pickle.dumps({"a": 1})[:-2])
    with pytest.raises(AgentError, match=r"vecnormalize\.pkl cannot be read"):
        read_normalization(path)


def test_yaml_of_the_zoo_is_read_without_building_objects(tmp_path: Path) -> None:
    path = tmp_path / "config.yml"
    path.write_text(
        "!!python/object/apply:collections.OrderedDict\n- - - n_envs\n    - 8\n  - - normalize\n    - true\n"
    )
    assert read_yaml(path) == {"n_envs": 8, "normalize": True}
    trap = tmp_path / "touched"
    path.write_text(f"normalize: !!python/object/apply:os.mknod ['{trap}']\n")
    assert read_yaml(path) == {"normalize": [str(trap)]}
    assert not trap.exists()
    path.write_text("a: [")
    with pytest.raises(AgentError, match=r"config\.yml cannot be read"):
        read_yaml(path)
    assert read_yaml(tmp_path / "none.yml") == {}
