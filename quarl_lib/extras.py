"""The package's extras: which modules each brings, and how to install the one that an import misses."""

from __future__ import annotations

import re

EXTRAS = {
    "actorq": ("reverb", "tensorflow", "dm_control", "mujoco", "acme", "codecarbon"),
    "engines": ("onnx", "onnxruntime"),
    "mujoco": ("mujoco", "imageio"),
    "box2d": ("Box2D",),
    "atari": ("ale_py", "cv2"),
    "contrib": ("sb3_contrib",),
    "bullet": ("pybullet", "pybullet_envs_gymnasium"),
}


def install_line(extra: str) -> str:
    """Return the command that installs an extra at its tested versions."""
    return f"pip install -c constraints.txt -e '.[{extra}]'"


def with_remedy(said: str) -> str:
    """Return an error's text, behind its first line the command that installs what an import missed."""
    missing = re.search(r"No module named '(\w+)", said)
    extra = next((extra for extra, modules in EXTRAS.items() if missing and missing[1] in modules), "")
    if not extra or "pip install" in said:
        return said
    first, newline, others = said.partition("\n")
    return f"{first}; {install_line(extra)}{newline}{others}"
