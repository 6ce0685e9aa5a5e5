"""Hold the tensors of a loss against the shapes that its docstring gives: broadcasting would hide a wrong one."""

from __future__ import annotations

from functools import cache

from torch import Tensor


def check_shapes(shapes: str, **tensors: Tensor) -> None:
    """Check one shape a tensor, in order: in "B N, B" equal letters are equal sizes; 2 us a tensor.

    Raises:
        ValueError: a rank or a size is another; names the tensor, what it has and what it should have.
    """
    sizes: dict[str, int] = {}
    for letters, (name, tensor) in zip(_parsed(shapes), tensors.items(), strict=True):
        shape = tuple(tensor.shape)
        for letter, size in zip(letters, shape, strict=False):
            if sizes.setdefault(letter, size) != size:
                raise _refusal(name, shape, letters, sizes)
        if len(shape) != len(letters):
            raise _refusal(name, shape, letters, sizes)


def _refusal(name: str, shape: tuple[int, ...], letters: tuple[str, ...], sizes: dict[str, int]) -> ValueError:
    known = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    return ValueError(f"{name} has shape {list(shape)}: give [{', '.join(letters)}], {known or 'whatever the sizes'}")


@cache
def _parsed(shapes: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(one.split()) for one in shapes.split(","))
