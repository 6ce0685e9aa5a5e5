"""Gymnasium's registry where tasks are named: packages that bring environments of their own, and what another process
must be told of them."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable

import gymnasium

ATARI_INSTALL = "pip install -c constraints.txt -e '.[atari]'"
BUILT_IN = ("gymnasium.", "ale_py.", "shimmy.")


def import_module(module: str, task: str) -> None:
    """Import a module that registers environments.

    Raises:
        ValueError: there is none of that name here.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        remedy = f"{ATARI_INSTALL}" if module == "ale_py" else "install its package, or run from its folder"
        raise ValueError(f"task={task!r}: module {module!r} cannot be imported ({error}); {remedy}") from error


def import_modules(modules: Iterable[str]) -> None:
    """Import modules that register environments, each once a process.

    Raises:
        ValueError: one of them cannot be imported.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(
                f"import_modules={list(modules)}: {module!r} cannot be imported ({error}); install its package, or "
                "run from its folder"
            ) from error


def registered_name(name: str) -> str:
    """Return the id under which gymnasium knows `[<module>:]<id>`, its module (or Atari's) imported first."""
    module, colon, bare = name.rpartition(":")
    if colon:
        import_module(module, f"gym:{name}")
    elif name.startswith("ALE/"):
        import_module("ale_py", f"gym:{name}")
    return bare


@functools.cache
def kind_of_actions(name: str) -> str:
    """Return "discrete" or "continuous".

    Raises:
        ValueError: the actions are neither counted nor a bounded array.
    """
    environment = gymnasium.make(registered_name(name), disable_env_checker=True)
    try:
        space = environment.action_space
    finally:
        environment.close()
    if isinstance(space, gymnasium.spaces.Discrete):
        return "discrete"
    if isinstance(space, gymnasium.spaces.Box):
        return "continuous"
    raise ValueError(
        f"task={'gym:' + name!r}: actions are {space}; give a task with Discrete or bounded Box actions, or wrap it"
    )


def own_registration(task: str, modules: Iterable[str] = ()) -> gymnasium.envs.registration.EnvSpec | None:
    """Return what a new process must register before it can make a task; None where importing suffices.

    Raises:
        ValueError: it was registered in this process in a way that no other can repeat.
    """
    suite, _, name = task.partition(":")
    if suite != "gym" or ":" in name:
        return None
    spec = gymnasium.spec(registered_name(name))
    entry = spec.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    if f"{module}.".startswith((*BUILT_IN, *(f"{known}." for known in modules))):
        return None
    local = not isinstance(entry, str) and "<" in getattr(entry, "__qualname__", "<")
    if module == "__main__" or local:
        raise ValueError(
            f"task={task!r}: it was registered in this process alone, and its class lies in {module or 'no module'}, "
            f"which the actors cannot import; put it in a module and write gym:<module>:{name}, or name the module in "
            "import_modules"
        )
    return spec


def prepare(modules: Iterable[str], spec: gymnasium.envs.registration.EnvSpec | None) -> None:
    """Import in a new process what registers environments, and register what `own_registration` returned elsewhere."""
    import_modules(modules)
    if spec is not None and spec.id not in gymnasium.registry:
        gymnasium.registry[spec.id] = spec
