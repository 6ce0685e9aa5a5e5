"""Methods replaced on single objects, and put back; a copy or a pickle of such an object has its own method again."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any


class Replacement:
    """Stands for a method of one object."""

    def __init__(self, owner: object, name: str, call: Callable[..., Any]) -> None:
        self.owner, self.call = owner, call
        self.original: MethodType = getattr(owner, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> MethodType:
        return MethodType(self.original.__func__, memo.get(id(self.owner), self.owner))

    def __reduce__(self) -> tuple[type, tuple[Any, Any]]:
        return MethodType, (self.original.__func__, self.owner)


class Patches:
    """The replaced methods of several objects."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str]] = []

    def replace(self, owner: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Let `owner.name` be `call`, and return the method as it was.

        Raises:
            ValueError: it was replaced before, so that what it does is not known.
        """
        if name in vars(owner):
            raise ValueError(
                f"{type(owner).__name__}.{name} is replaced already: "
                "leave the other quantized rollouts of this model first"
            )
        replacement = Replacement(owner, name, call)
        setattr(owner, name, replacement)
        self._done.append((owner, name))
        return replacement.original

    def restore(self) -> None:
        """Put every method back, the last one first."""
        while self._done:
            owner, name = self._done.pop()
            if isinstance(vars(owner).get(name), Replacement):
                delattr(owner, name)
