"""Typed parameters: read a notebook's parameters cell, and hold what a user gives against it.

Papermill loses a parameter whose help holds "=", reads YAML's 1e-4 as a string and lets an unknown name pass with a
warning; here the cell alone decides each parameter's type, and every value is read from its text accordingly.
"""

from __future__ import annotations

import ast
import difflib
import io
import itertools
import math
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Scalar = int | float | str | bool
SCALARS: dict[str, Any] = {"int": int, "float": float, "str": str, "bool": bool}
TYPES = (*SCALARS, *(f"list[{name}]" for name in ("int", "float", "str")))
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of snake_case, camelCase and CAPITALS
_SECRET_WORDS = frozenset({"auth", "bearer", "credential", "credentials", "passphrase", "passwd", "pwd", "secrets"})
_SECRET_ENDS = ("apikey", "password", "secret", "token")


def looks_secret(name: str) -> bool:
    """Say whether a parameter's name is that of a secret: hub_token, apiToken, pwd, any `<something>_key`."""
    words = [word.lower() for word in _WORD.findall(name)]
    return "key" in words[1:] or any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words)


@dataclass(frozen=True)
class Parameter:
    """One line of the parameters cell: `name: type = default  # help`."""

    name: str
    type: str
    default: Any
    help: str = ""


def parse_cell(source: str) -> dict[str, Parameter]:
    """Read every `name: type = value  # help` line of a parameters cell.

    Raises:
        ValueError: a line is something else, no Python, or its type is not among `TYPES`.
    """
    try:
        nodes = ast.parse(source).body
    except SyntaxError as error:
        raise ValueError(f"parameters cell, line {error.lineno}: no Python: {error.msg}") from None
    comments = {
        token.start[0]: token.string.lstrip("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node in nodes:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
            line = source.splitlines()[node.lineno - 1]
            raise ValueError(f"parameters cell, {line!r}: write it as `name: type = value  # help`")
        name, kind = node.target.id, ast.unparse(node.annotation)
        if kind not in TYPES:
            raise ValueError(f"parameter {name}: type {kind} is not one of {', '.join(TYPES)}")
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            raise _refusal(name, kind, ast.unparse(node.value), "write the value itself, no expression") from None
        if isinstance(default, str) and kind != "str":
            raise _refusal(name, kind, default, "write the default without quotes")
        default = from_value(name, kind, default)
        found[name] = Parameter(name, kind, default, comments.get(node.end_lineno or node.lineno, ""))
    return found


def from_value(name: str, kind: str, value: Any) -> Any:
    """Return a Python value as a parameter of type `kind`; text is read, an int does for a float.

    Raises:
        ValueError: the value is of another type, or not finite.
    """
    if kind.startswith("list["):
        if isinstance(value, str):
            return _list_from_text(name, kind, value)
        if not isinstance(value, list | tuple):
            raise _refusal(name, kind, value, "write [a, b, ...]")
        return [from_value(name, kind[5:-1], item) for item in value]
    if isinstance(value, str):
        return from_text(name, kind, value)
    exact = SCALARS[kind]
    if type(value) is exact or (exact is float and type(value) is int):
        value = exact(value)
        if exact is float and not math.isfinite(value):
            raise _refusal(name, kind, value, "give a finite number")
        return value
    raise _refusal(name, kind, value)


def from_text(name: str, kind: str, text: str) -> Scalar:
    """Read one scalar from its text, by the parameter's type alone."""
    if kind == "str":
        return text
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise _refusal(name, kind, text, "write true or false")
        return text.lower() == "true"
    try:
        number = float(text) if kind == "float" else _whole(text)
    except (ValueError, OverflowError):
        raise _refusal(name, kind, text) from None
    if not math.isfinite(number):
        raise _refusal(name, kind, text, "give a finite number")
    return number


def _whole(text: str) -> int:
    """Read an int; 1e6 is one, 7.5 is not."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(text) from None
        return int(number)


def _list_from_text(name: str, kind: str, text: str) -> list[Scalar]:
    if text.strip().startswith("["):
        return _from_node(name, kind, _composed(name, text))
    if not text.strip():
        raise _refusal(name, kind, text, "write [] for none")
    return [from_text(name, kind[5:-1], item.strip()) for item in text.split(",")]


def _composed(source: str, text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{source}: not YAML: {' '.join(str(error).split())}") from None


def _from_node(name: str, kind: str, node: yaml.Node | None) -> Any:
    """Read a YAML node by the parameter's type: YAML's own guesses (1e-4 a string, no a bool) do not count."""
    if isinstance(node, yaml.SequenceNode):
        if not kind.startswith("list["):
            raise _refusal(name, kind, "a list", "give one value, or several with --grid")
        return [_from_node(name, kind[5:-1], item) for item in node.value]
    if not isinstance(node, yaml.ScalarNode):
        raise _refusal(name, kind, "a mapping or nothing")
    if node.tag == "tag:yaml.org,2002:null" and node.style is None:
        raise _refusal(name, kind, "null", "leave the parameter out to keep its default")
    return from_value(name, kind, node.value)


def _refusal(name: str, kind: str, value: Any, remedy: str = "") -> ValueError:
    return ValueError(f"parameter {name}: {value!r} is not of type {kind}" + (f"; {remedy}" if remedy else ""))


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return what to do about an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def known(name: str, declared: Mapping[str, Parameter]) -> Parameter:
    if looks_secret(name):
        raise ValueError(
            f"parameter {name}: looks like a secret, and parameters are written into reports; leave it out"
        )
    if name not in declared:
        raise ValueError(f"parameter {name}: unknown; {suggestion(name, declared)}")
    return declared[name]


def from_yaml(text: str, declared: Mapping[str, Parameter], source: str) -> dict[str, Any]:
    """Read a params file: a mapping from parameter names to values, each typed as the cell says.

    Raises:
        ValueError: not such a mapping, an unknown or repeated name, a value of another type; says where.
    """
    root = _composed(source, text)
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{source}: write one `name: value` per line")
    values: dict[str, Any] = {}
    for key, node in root.value:
        where = f"{source}, line {key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{where}: a list or mapping stands where a parameter's name belongs; write `name: value`")
        if key.value in values:
            raise ValueError(f"{where}: {key.value} stands there twice")
        try:
            values[key.value] = _from_node(key.value, known(key.value, declared).type, node)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return values


def from_pairs(pairs: Iterable[str], declared: Mapping[str, Parameter], grid: bool = False) -> dict[str, Any]:
    """Read `name=value` arguments; with `grid`, each value of a comma-separated list stands for a run of its own."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"-p {pair}: write name=value")
        parameter = known(name.strip(), declared)
        if text.strip().lower() in ("null", "~"):
            raise _refusal(parameter.name, parameter.type, text, "leave the parameter out to keep its default")
        if grid:
            values[parameter.name] = _grid_values(parameter, text)
        else:
            values[parameter.name] = from_value(parameter.name, parameter.type, text)
    return values


def _grid_values(parameter: Parameter, text: str) -> list[Any]:
    """Split `2,4,8` into one value a run; for a parameter that is a list itself, `[2],[4,8]` or `2,4,8` do."""
    parts = [part.strip() for part in re.findall(r"\[[^\]]*\]|[^,\[\]]+", text) if part.strip()]
    if not parts:
        raise _refusal(parameter.name, parameter.type, text, "an empty grid; give at least one value, as in a=1,2")
    return [from_value(parameter.name, parameter.type, part) for part in parts]


def from_values(values: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Hold Python values against the declared parameters: the same rules as on the command line."""
    return {name: from_value(name, known(name, declared).type, value) for name, value in values.items()}


def combinations(values: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values of a grid, the last name varying fastest."""
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def read_file(path: Path, declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Read a params file of a preset or of `-f`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8; save the file in that encoding") from None
    return from_yaml(text, declared, str(path))
