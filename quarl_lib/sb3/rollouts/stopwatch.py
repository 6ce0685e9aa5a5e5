"""Time of a training by part, from the calls that Stable-Baselines3 makes anyway."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from torch.utils.hooks import RemovableHandle

PROBE_CALLS = 20


class Stopwatch:
    """Sums the seconds of rollouts and of learning; what acts adds its own seconds.

    `collecting` and `learning` are told when each begins. A part that never saw its end (the last learning, a rollout
    that a callback stopped) ends with the last action or optimizer step.
    """

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.inference_s = self.acting_s = self._collect_s = self._learn_s = 0.0
        self.actions = 0  # calls
        self.pairs: list[tuple[float, float]] = []  # seconds of a call and of the model's own forward: the probe
        self._call_s = 0.0
        self._state, self._since, self._last = "", 0.0, 0.0
        self._hooks: list[RemovableHandle] = [one.register_step_post_hook(self._stepped) for one in optimizers]

    def collecting(self) -> None:
        """A rollout begins, or goes on."""
        if self._state != "collecting":
            self._turn("collecting", perf_counter())

    def learning(self) -> None:
        """Learning begins."""
        self._turn("learning", perf_counter())

    def acted(self, begin: float) -> None:
        """An action was computed since `begin`."""
        self._last = perf_counter()
        self._call_s = self._last - begin
        self.inference_s += self._call_s
        self.acting_s += self._call_s
        self.actions += 1

    def probe(self, own: Callable[[], object]) -> None:
        """Time the model's own forward as well, in the first calls; its draws are undone, its time counts nowhere."""
        if len(self.pairs) >= PROBE_CALLS:
            return
        begin = perf_counter()
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices=devices):
            inner = perf_counter()
            own()
            self.pairs.append((self._call_s, perf_counter() - inner))
        self._since += perf_counter() - begin

    def times(self) -> tuple[float, float, float]:
        """Return seconds of inference, of the rest of rollouts, and of learning."""
        collect, learn = self._collect_s, self._learn_s
        open_s = max(self._last - self._since, 0.0)
        collect += open_s if self._state == "collecting" else 0.0
        learn += open_s if self._state == "learning" else 0.0
        return self.inference_s, max(collect - self.inference_s, 0.0), learn

    def own_inference_s(self) -> float:
        """Return what the model's own forward would have taken, from calls of both made one after the other.

        A ratio of neighbours: what else the machine does falls on both sides alike.
        """
        return self.acting_s * statistics.median(own / call for call, own in self.pairs)

    def close(self) -> None:
        """Let go of the optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _turn(self, state: str, now: float) -> None:
        if self._state == "collecting":
            self._collect_s += now - self._since
        elif self._state == "learning":  # what lies between two calls of `learn` is none of the training's time
            self._learn_s += max(self._last - self._since, 0.0)
        self._state, self._since = state, now

    def _stepped(self, *_: object) -> None:
        self._last = perf_counter()
