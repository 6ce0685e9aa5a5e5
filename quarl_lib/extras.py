"""What is installed apart: which modules each extra brings, and how to install the one that an import misses."""

from __future__ import annotations

import re
from pathlib import Path

EXTRAS = {
    "reverb": ("reverb", "tensorflow", "acme", "jax"),
    "mujoco": ("imageio",),
    "box2d": ("Box2D",),
    "atari": ("ale_py", "cv2"),
    "contrib": ("sb3_contrib",),
    "bullet": ("pybullet", "pybullet_envs_gymnasium"),
    "ray": ("ray",),
}
# Not extras, but what an environment put together by hand may lack.
PLAIN = ("dm_control", "mujoco", "codecarbon", "onnx", "onnxruntime")
CHECKOUT = Path(__file__).resolve().parents[1]


def install_line(extra: str = "") -> str:
    """Return the command that installs the package, with an extra, at its tested versions; a wheel has none."""
    brackets = f"[{extra}]" if extra else ""
    if (CHECKOUT / "pyproject.toml").exists():
        return f"pip install -c constraints.txt -e '.{brackets}'"
    return f"pip install 'quarl-lib{brackets}'"


def with_remedy(said: str) -> str:
    """Return an error's text, behind its first line the command that installs what an import missed."""
    missing = re.search(r"No module named '(\w+)", said)
    known = {module: extra for extra, modules in {"": PLAIN, **EXTRAS}.items() for module in modules}
    if not missing or missing[1] not in known or "pip install" in said:
        return said
    first, newline, others = said.partition("\n")
    return f"{first}; {install_line(known[missing[1]])}{newline}{others}"
