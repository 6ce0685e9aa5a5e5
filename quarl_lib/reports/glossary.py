"""What the field's words mean, shown where a reader rests the pointer on one."""

from __future__ import annotations

import re
from typing import Any

MEANINGS = {
    "actor": "A process that plays in the environment with its own copy of the policy and collects experience.",
    "learner": "The process that trains the policy on the experience that actors collect.",
    "replay": "The store of experience between actors and learner.",
    "quantized": "With weights and activations as small integers instead of 32-bit floating-point numbers.",
    "fp32": "32-bit floating-point numbers, the usual precision of training.",
    "fp16": "16-bit floating-point numbers.",
    "int8": "8-bit integers: 256 different values a weight.",
    "int4": "4-bit integers: 16 different values a weight.",
    "int3": "3-bit integers: 8 different values a weight.",
    "int2": "2-bit integers: 4 different values a weight.",
    "PTQ": "Post-training quantization: a trained policy is quantized afterwards.",
    "QAT": "Quantization-aware training: training already rounds as the quantized policy will.",
    "simulated": "Rounded to the integers' grid, but computed in fp32: says what is lost, nothing about speed.",
    "native": "Computed by integer instructions: such a policy may claim speed.",
    "return": "The sum of rewards over an episode.",
    "KL": "Kullback-Leibler divergence: how far the action distributions are apart, 0 where they are the same.",
    "D4PG": "The actor-critic algorithm for continuous actions that the paper trains with.",
    "threshold": "The mean return at which a run counts as done.",
}
_WORDS = re.compile(r"\b(" + "|".join(sorted(map(re.escape, MEANINGS), key=len, reverse=True)) + r")(?:s)?\b")
_PROSE = ("p", "li", "figcaption")


def explain(page: Any, known: set[str]) -> None:
    """Wrap the first occurrence of each word in a parsed page's prose; `known` are those explained before."""
    for text in page.find_all(string=_WORDS):
        if not text.find_parent(_PROSE) or text.find_parent(["a", "code", "pre", "math", "abbr", "summary"]):
            continue
        parts, end = [], 0
        for match in _WORDS.finditer(text):
            if match[1] in known:
                continue
            known.add(match[1])
            explained = page.new_tag("abbr", attrs={"title": MEANINGS[match[1]]})
            explained.string = match[0]
            parts += [text[end : match.start()], explained]
            end = match.end()
        if parts:
            text.replace_with(*parts, text[end:])
