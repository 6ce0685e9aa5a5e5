"""Which values of a study's parameters are documented, and few rows in which every two of them meet.

A value is documented where the parameters cell's help or a preset names it, or the Config's own refusal of another; it
counts if the Config accepts it. Numbers are sizes: there only 0 has a meaning of its own, where the help gives it one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from quarl_lib.suite.catalog import PRESETS, Study
from quarl_lib.suite.parameters import Parameter

NONSENSE = "no-such-value"


def refusal(config_class: Any, values: dict[str, Any]) -> str:
    """Return why a Config refuses some values; empty where it accepts them."""
    try:
        config_class(**values)
    except ValueError as error:
        return str(error)
    return ""


def documented(study: Study, config_class: Any, base: dict[str, Any], each: Iterable[str]) -> dict[str, list[Any]]:
    """Return every parameter's documented values, first the one that it has in `base`.

    Args:
        each: parameters that name things of an open set; of these the cell's own are taken, one at a time.
    """
    values = {name: [base[name]] for name in study.parameters}
    later = []
    for name, parameter in study.parameters.items():
        for value in _candidates(study, config_class, base, parameter, name in each):
            if refusal(config_class, {**base, name: value}):
                later.append((name, value))
            elif not any(_same(value, known) for known in values[name]):
                values[name].append(value)
    for name, value in later:  # some need another value beside them
        beside = ({other: one} for other in values for one in values[other][1:] if other != name)
        known = any(_same(value, one) for one in values[name])
        if not known and any(not refusal(config_class, {**base, **one, name: value}) for one in beside):
            values[name].append(value)
    return values


def _same(one: Any, other: Any) -> bool:
    return sorted(one) == sorted(other) if isinstance(one, list) else one == other


def _candidates(
    study: Study, config_class: Any, base: dict[str, Any], parameter: Parameter, each: bool
) -> Iterator[Any]:
    kind, several = parameter.type.removeprefix("list[").rstrip("]"), parameter.type.startswith("list")
    name, default = parameter.name, parameter.default
    if each:
        yield from ([one] for one in default) if several else [default]
    elif kind == "bool":
        yield from (False, True)
    elif kind in ("int", "float") and re.search(r"\b0\b", parameter.help):
        zero = {"int": 0, "float": 0.0}[kind]
        yield [zero] * len(base[name]) if several else zero
    elif kind == "str":
        refused = refusal(config_class, {**base, name: [*default, NONSENSE] if several else NONSENSE})
        if not refused:
            return  # any text will do: no value is documented
        presets = [study.preset(preset)[name] for preset in PRESETS]
        words = [*_flat(presets), *re.findall(r"[\w./-]*\w", f"{parameter.help} {refused}")]
        for word in dict.fromkeys(words):
            yield from _lists_with(word, default, config_class, base, name) if several else [word]


def _flat(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        yield from value if isinstance(value, list) else [value]


def _lists_with(
    word: str, others: list[str], config_class: Any, base: dict[str, Any], name: str
) -> Iterator[list[str]]:
    """Return the shortest list with a word that the Config accepts: some need another value beside it."""
    for value in ([word], *([other, word] for other in others), [*others, word]):
        if len(set(value)) == len(value) and not refusal(config_class, {**base, name: value}):
            yield value
            return


def rows_of(config_class: Any, base: dict[str, Any], values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return rows in which every value meets every other parameter's every value, where the Config accepts the two.

    Greedy: each row begins with what is not covered yet, and takes of every other parameter the value that covers most.
    """
    alone = [((name, i),) for name in values for i in range(len(values[name]))]
    pairs = [(*one, *other) for one, other in itertools.combinations(alone, 2) if one[0][0] != other[0][0]]
    still_open = dict.fromkeys(map(frozenset, [*pairs, *alone]))
    rows = []

    def accepted(chosen: dict[str, int]) -> bool:
        return not refusal(config_class, filled(chosen))

    def filled(chosen: dict[str, int]) -> dict[str, Any]:
        return {**base, **{name: values[name][i] for name, i in chosen.items()}}

    while still_open:
        first = next(iter(still_open))
        helped = (dict(first) | {name: i} for ((name, i),) in alone if name not in dict(first))
        chosen = next(filter(accepted, itertools.chain([dict(first)], helped)), None)
        if chosen is None:  # refused by name, whatever stands beside it
            del still_open[first]
            continue
        for name in values:
            gain = {i: sum(frozenset({(name, i), one}) in still_open for one in chosen.items())
                    for i in range(len(values[name]))}  # fmt: skip
            best = sorted(gain, key=gain.__getitem__, reverse=True) if name not in chosen else []
            chosen |= next(({name: i} for i in best if accepted({**chosen, name: i})), {})
        rows.append(filled(chosen))
        for count in (1, 2):
            for covered in itertools.combinations(chosen.items(), count):
                still_open.pop(frozenset(covered), None)
    return rows
