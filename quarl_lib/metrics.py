"""What the studies report: errors, exact KL divergences, bootstrap intervals, times and ratios. Pure numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[..., Floats]
RESAMPLES = 4000


class Interval(NamedTuple):
    """An estimate and its bootstrap confidence interval."""

    estimate: float
    low: float
    high: float


def relative_error(value: float, reference: float) -> float:
    """Return (reference - value) / |reference|, the share of the return that is lost; NaN for reference 0."""
    return (reference - value) / abs(reference) if reference else math.nan


# --- divergences: one value a state, in nats, averaged by the caller ------------------------------------------------


def categorical_kl(logits: ArrayLike, other_logits: ArrayLike) -> Floats:
    """Return KL(softmax(logits) || softmax(other)) per state: [n, actions] twice -> [n]; Q values are logits too.

    Raises:
        ValueError: the shapes differ or a value is not finite.
    """
    log_p, log_q = (x - _logsumexp(x) for x in _pair(logits, other_logits))
    return np.maximum((np.exp(log_p) * (log_p - log_q)).sum(axis=-1), 0.0)


def gaussian_kl(mean: ArrayLike, std: ArrayLike, other_mean: ArrayLike, other_std: ArrayLike) -> Floats:
    """Return KL(N(mean, std) || N(other_mean, other_std)) per state and dimension; sum the last axis for the joint one.

    Raises:
        ValueError: the means' shapes differ, a value is not finite, or a standard deviation is not positive.
    """
    mean, other_mean = _pair(mean, other_mean)
    std, other_std = _pair(np.broadcast_to(std, mean.shape), np.broadcast_to(other_std, mean.shape))
    if (std <= 0).any() or (other_std <= 0).any():
        raise ValueError(f"std={min(std.min(), other_std.min()):.3g}: a Gaussian needs a positive standard deviation")
    # log1p keeps u - log(1 + u) from cancelling: equal policies give exactly 0, close ones never less.
    excess = (std / other_std - 1.0) * (std / other_std + 1.0)
    return 0.5 * np.maximum(excess - np.log1p(excess), 0.0) + 0.5 * ((mean - other_mean) / other_std) ** 2


def equal_variance_kl(action: ArrayLike, other_action: ArrayLike, std: ArrayLike) -> Floats:
    """Return per state and dimension the KL of two Gaussians of one `std` around deterministic actions."""
    return gaussian_kl(action, std, other_action, std)


def same_action_rate(actions: ArrayLike, other_actions: ArrayLike) -> float:
    """Return the share of states in which two policies take the same discrete action."""
    first, second = np.asarray(actions), np.asarray(other_actions)
    if first.shape != second.shape or not first.size:
        raise ValueError(f"actions of shapes {first.shape} and {second.shape}: give two equal, non-empty ones")
    return float((first == second).mean())


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ; give both policies the same states")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a policy's output holds NaN or infinity; no divergence is defined")
    return a, b


def _logsumexp(x: Floats) -> Floats:
    top = x.max(axis=-1, keepdims=True)
    return top + np.log(np.exp(x - top).sum(axis=-1, keepdims=True))


# --- intervals ------------------------------------------------------------------------------------------------------


def bootstrap_ci(
    values: ArrayLike,
    confidence: float = 0.95,
    seed: int = 0,
    statistic: Statistic = np.mean,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return a statistic of independent values (episodes, seeds) with its percentile bootstrap interval.

    `statistic` takes `axis`. The same seed gives the same interval.
    """
    data = _sample(values, "values")
    draws = statistic(data[_resample(len(data), resamples, np.random.default_rng(seed))], axis=1)
    return _interval(float(statistic(data, axis=0)), draws, confidence)


def paired_difference(
    values: ArrayLike, reference: ArrayLike, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean of values - reference, paired by position (the same episode seed), with its interval."""
    first, second = _sample(values, "values"), _sample(reference, "reference")
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} values and {len(second)} references: a pair needs one of each")
    return bootstrap_ci(first - second, confidence, seed, resamples=resamples)


def speedup(
    baseline: ArrayLike,
    values: ArrayLike,
    paired: bool = False,
    statistic: Statistic = np.median,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return statistic(baseline times) / statistic(times) with its interval; above 1 means faster than the baseline.

    `paired` resamples pairs (interleaved repeats of one run), otherwise both sides on their own (seeds).

    Raises:
        ValueError: a time is not positive and finite, or pairs are incomplete.
    """
    slow, fast = _sample(baseline, "baseline"), _sample(values, "values")
    if (slow <= 0).any() or (fast <= 0).any():
        raise ValueError("a time is not positive; a ratio of times needs positive ones")
    if paired and len(slow) != len(fast):
        raise ValueError(f"{len(slow)} baseline and {len(fast)} values: paired=True needs one of each")
    rng = np.random.default_rng(seed)
    first = _resample(len(slow), resamples, rng)
    second = first if paired else _resample(len(fast), resamples, rng)
    draws = statistic(slow[first], axis=1) / statistic(fast[second], axis=1)
    return _interval(float(statistic(slow, axis=0) / statistic(fast, axis=0)), draws, confidence)


def _sample(values: ArrayLike, name: str) -> Floats:
    data = np.asarray(values, np.float64).reshape(-1)
    if not data.size or not np.isfinite(data).all():
        raise ValueError(
            f"{name}: {data.size} values, {(~np.isfinite(data)).sum()} not finite; give at least one, all finite"
        )
    return data


def _resample(size: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.integers(0, size, (resamples, size))


def _interval(estimate: float, draws: Floats, confidence: float) -> Interval:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r}: give a share between 0 and 1, such as 0.95")
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    # Summing in another order moves the last bit of a constant sample: the interval must not lie beside its estimate.
    return Interval(estimate, min(float(low), estimate), max(float(high), estimate))


# --- curves ---------------------------------------------------------------------------------------------------------


def iqm(values: ArrayLike, axis: int | None = None) -> Floats:
    """Return the interquartile mean: the mean after cutting a quarter (rounded down) at each end."""
    data = np.asarray(values, np.float64)
    data = np.sort(data.reshape(-1) if axis is None else np.moveaxis(data, axis, -1), axis=-1)
    cut = data.shape[-1] // 4
    return data[..., cut : data.shape[-1] - cut].mean(axis=-1)


def running_mean(values: ArrayLike, window: int = 10) -> Floats:
    """Return the mean of each value and the `window` - 1 before it; the first ones average what is there."""
    if window < 1:
        raise ValueError(f"window={window}: give at least 1")
    data = np.asarray(values, np.float64)
    total = np.concatenate([[0.0], np.cumsum(data)])
    end = np.arange(1, len(data) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def time_to_threshold(times: ArrayLike, values: ArrayLike, threshold: float, window: int = 10) -> float:
    """Return the first time at which the running mean over a full window reaches the threshold, infinity if never.

    A curve shorter than the window is averaged over its whole length.
    """
    clock, data = np.asarray(times, np.float64), np.asarray(values, np.float64)
    if clock.shape != data.shape:
        raise ValueError(f"{len(clock)} times for {len(data)} values; give one of each")
    window = max(min(window, len(data)), 1)
    reached = np.flatnonzero(running_mean(data, window)[window - 1 :] >= threshold)
    return float(clock[reached[0] + window - 1]) if len(reached) else math.inf
