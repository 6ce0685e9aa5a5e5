"""Hold the tensors of a loss against the shapes that its docstring gives: broadcasting would hide a wrong one."""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor


def check_shapes(shapes: str, **tensors: Tensor) -> None:
    """Check one shape a tensor, in order: in "B N, B" equal letters are equal sizes.

    Raises:
        ValueError: a rank or a size is another; names the tensor, what it has and what it should have.
    """
    _check(shapes, tuple(tensors), tuple(tensor.shape for tensor in tensors.values()))


@lru_cache(maxsize=256)
def _check(shapes: str, names: tuple[str, ...], found: tuple[tuple[int, ...], ...]) -> None:
    sizes: dict[str, int] = {}
    for wanted, name, shape in zip(shapes.split(","), names, found, strict=True):
        letters = wanted.split()
        known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
        fits = all(sizes.setdefault(letter, size) == size for letter, size in zip(letters, shape, strict=False))
        if not fits or len(shape) != len(letters):
            raise ValueError(f"{name} has shape {list(shape)}: give [{', '.join(letters)}], {known or 'of any size'}")
