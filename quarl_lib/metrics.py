"""What the studies report: errors, exact KL divergences, ratios and differences with their intervals, times."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
RESAMPLES = 4000
FEWEST_FOR_BOOTSTRAP = 30  # below it undercovers


class Interval(NamedTuple):
    """An estimate and its confidence interval, NaN where one value alone leaves none."""

    estimate: float
    low: float
    high: float


def relative_error(value: float, reference: float) -> float:
    """Return (reference - value) / |reference|, the share of the return that is lost; NaN for reference 0."""
    return (reference - value) / abs(reference) if reference else math.nan


def not_inferior(low: float, reference: float, floor: float, tolerated: float = 0.05) -> bool:
    """Say whether `low`, the lower end of a difference, lies above -`tolerated` of the range from floor to reference.

    False where the reference is no better than the floor (a random policy's return), or where there is no interval.
    """
    span = reference - floor
    return bool(span > 0 and low > -tolerated * span)


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
    """Return the share of states in which two policies take the same discrete action, [n] or [n, components]."""
    first, second = np.asarray(actions), np.asarray(other_actions)
    if first.shape != second.shape or not first.size:
        raise ValueError(f"actions of shapes {first.shape} and {second.shape}: give two equal, non-empty ones")
    return float((first == second).reshape(len(first), -1).all(axis=1).mean())


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


# --- intervals: one kind for every study ----------------------------------------------------------------------------


def paired_ratio(baseline: ArrayLike, values: ArrayLike, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Return the geometric mean of baseline / values, paired by position (round or seed), with its interval.

    Of times: above 1 is faster than the baseline. The interval is that of the mean of the ratios' logarithms, so that
    the ratio the other way round is one over it. No pair at all: all three are NaN.

    Raises:
        ValueError: pairs are incomplete, or a value is not positive and finite.
    """
    above, below = _pairs(baseline, values)
    if (above <= 0).any() or (below <= 0).any():
        raise ValueError("a value is not positive; a ratio's logarithm needs positive ones")
    logs = np.log(above) - np.log(below)
    if not len(logs):
        return Interval(math.nan, math.nan, math.nan)
    return Interval(*(math.exp(value) for value in mean_interval(logs, confidence, seed)))


def paired_difference(values: ArrayLike, reference: ArrayLike, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of values - reference, paired by position (episode or training seed), with its interval.

    Every comparison inside a study has pairs. Two runs have none: their means differ where the intervals of
    `mean_interval` do not overlap, which asks for more than 95 %.
    """
    first, second = _pairs(values, reference)
    return mean_interval(first - second, confidence, seed)


def mean_interval(values: ArrayLike, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Return the mean of independent values (episodes, seeds, rounds) with its interval, of which one value has none.

    Raises:
        ValueError: there is no value, one is not finite, or the confidence is no share.
    """
    data = _sample(values, "values")
    if not data.size:
        raise ValueError("values: 0 values; give at least one")
    estimate = float(data.mean())
    low, high = mean_bounds(data, confidence, seed)
    # Summing in another order moves the last bit of a constant sample: the interval must not lie beside its estimate.
    return Interval(estimate, float(np.minimum(low, estimate)), float(np.maximum(high, estimate)))


def mean_bounds(values: Floats, confidence: float = 0.95, seed: int = 0) -> tuple[Floats, Floats]:
    """Return the bounds of the mean along the last axis: [..., n] -> [...] twice.

    One value has none (NaN). Below thirty it is Student's t interval, which few values need; from thirty on a BCa
    bootstrap (Efron 1987), which follows a skew. Equal values have an interval without width: nothing varied.
    """
    from scipy import special, stats  # takes a second, and only intervals need it

    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r}: give a share between 0 and 1, such as 0.95")
    count = values.shape[-1]
    mean = values.mean(axis=-1)
    if count < 2:
        return np.full_like(mean, math.nan), np.full_like(mean, math.nan)
    half = special.stdtrit(count - 1, 0.5 + confidence / 2) * values.std(axis=-1, ddof=1) / math.sqrt(count)
    low, high = mean - half, mean + half
    if count < FEWEST_FOR_BOOTSTRAP:
        return low, high
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        drawn = stats.bootstrap(
            (values,), np.mean, axis=-1, n_resamples=RESAMPLES, confidence_level=confidence, method="BCa",
            rng=np.random.default_rng(seed),
        ).confidence_interval  # fmt: skip
    # Equal values leave BCa undefined; their t interval is the one point.
    defined = np.isfinite(drawn.low) & np.isfinite(drawn.high)
    return np.where(defined, drawn.low, low), np.where(defined, drawn.high, high)


def _pairs(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    one, other = _sample(first, "first of a pair"), _sample(second, "second of a pair")
    if one.shape != other.shape:
        raise ValueError(f"{len(one)} and {len(other)} values: a pair needs one of each")
    return one, other


def _sample(values: ArrayLike, name: str) -> Floats:
    data = np.asarray(values, np.float64).reshape(-1)
    if not np.isfinite(data).all():
        raise ValueError(f"{name}: {(~np.isfinite(data)).sum()} of {data.size} values are not finite; leave them out")
    return data


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
