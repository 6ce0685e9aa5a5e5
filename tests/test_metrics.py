"""Metrics against numbers worked out by hand and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import integrate, special, stats

from quarl_lib import metrics

FLOATS = st.floats(-50, 50)


def test_relative_error_is_the_share_lost():
    assert metrics.relative_error(400, 500) == pytest.approx(0.2)
    assert metrics.relative_error(-240, -200) == pytest.approx(0.2)
    assert metrics.relative_error(-100, -200) == pytest.approx(-0.5)
    assert math.isnan(metrics.relative_error(1, 0))


def test_categorical_kl_by_hand():
    # p = (3/4, 1/4), q = (1/2, 1/2)
    kl = metrics.categorical_kl([[math.log(3), 0.0]], [[5.0, 5.0]])
    assert kl == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert kl.shape == (1,)


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.float64, (2, 3, 4), elements=FLOATS))
def test_categorical_kl_against_scipy(logits):
    p, q = special.softmax(logits, axis=-1)
    expected = stats.entropy(p, q, axis=-1)
    np.testing.assert_allclose(metrics.categorical_kl(*logits), expected, rtol=1e-6, atol=1e-9)
    assert (metrics.categorical_kl(logits[0], logits[0]) == 0).all()


def test_categorical_kl_stays_finite_where_a_probability_is_zero():
    assert metrics.categorical_kl([[0.0, 2000.0]], [[0.0, 1000.0]]) == pytest.approx(0)
    assert metrics.categorical_kl([[2000.0, 0.0]], [[0.0, 2000.0]]) == pytest.approx(2000)


def test_gaussian_kl_by_hand_and_by_integration():
    assert metrics.gaussian_kl([[1.0]], 1.0, [[0.0]], 1.0) == pytest.approx(0.5)
    mean, std, other, other_std = 0.3, 0.5, -0.2, 0.8
    density = stats.norm(mean, std)
    expected, _ = integrate.quad(
        lambda x: density.pdf(x) * (density.logpdf(x) - stats.norm(other, other_std).logpdf(x)), -8, 8
    )
    assert metrics.gaussian_kl([mean], [std], [other], [other_std]) == pytest.approx(expected, rel=1e-6)


def test_gaussian_kl_is_per_dimension_and_sums_to_the_joint_one():
    per_dimension = metrics.gaussian_kl([[0.0, 1.0]], [[1.0, 2.0]], [[0.0, 3.0]], [[1.0, 2.0]])
    assert per_dimension.tolist() == [[0, 0.5]]


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.float64, (3,), elements=FLOATS), st.floats(1e-6, 1e3), st.floats(0.999999, 1.000001))
def test_gaussian_kl_of_a_policy_with_itself_is_exactly_zero_and_never_negative(mean, std, factor):
    assert (metrics.gaussian_kl(mean, std, mean, std) == 0).all()
    assert (metrics.gaussian_kl(mean, std, mean, std * factor) >= 0).all()
    assert (metrics.equal_variance_kl(mean, mean, std) == 0).all()


def test_equal_variance_kl_by_hand():
    assert metrics.equal_variance_kl([[0.5, 0.0]], [[0.3, 0.0]], 0.1).tolist() == [[pytest.approx(2.0), 0]]


def test_divergences_refuse_what_they_cannot_answer():
    with pytest.raises(ValueError, match="NaN or infinity"):
        metrics.categorical_kl([[math.nan, 0]], [[0, 0]])
    with pytest.raises(ValueError, match="std=0"):
        metrics.gaussian_kl([0.0], 0.0, [0.0], 1.0)
    with pytest.raises(ValueError, match=r"shapes \(1,\) and \(2,\)"):
        metrics.categorical_kl([0.0], [0.0, 1.0])


def test_same_action_rate():
    assert metrics.same_action_rate([0, 1, 1, 2], [0, 1, 2, 2]) == 0.75
    with pytest.raises(ValueError, match="non-empty"):
        metrics.same_action_rate([], [])


def test_bootstrap_agrees_with_scipy_and_repeats_by_seed():
    values = np.random.default_rng(3).gamma(2.0, 10.0, 40)
    ours = metrics.bootstrap_ci(values, seed=1)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=4000, rng=2).confidence_interval
    assert ours.estimate == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, rel=0.02)
    assert ours.high == pytest.approx(theirs.high, rel=0.02)
    assert ours == metrics.bootstrap_ci(values, seed=1)
    assert ours != metrics.bootstrap_ci(values, seed=2)
    narrow = metrics.bootstrap_ci(values, confidence=0.5, seed=1)
    assert ours.low < narrow.low < narrow.high < ours.high


def test_bootstrap_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = [
        ci.low <= 5 <= ci.high
        for ci in (metrics.bootstrap_ci(rng.normal(5, 2, 30), seed=i, resamples=400) for i in range(300))
    ]
    assert 0.89 <= np.mean(hits) <= 0.98


def test_a_constant_sample_has_an_interval_without_width():
    assert metrics.bootstrap_ci([0.1] * 7) == (pytest.approx(0.1), pytest.approx(0.1), pytest.approx(0.1))
    assert metrics.paired_difference([500, 500], [500, 500]) == (0, 0, 0)


def test_paired_difference_removes_what_pairs_share():
    rng = np.random.default_rng(0)
    episode = rng.normal(0, 100, 50)
    paired = metrics.paired_difference(episode - 3 + rng.normal(0, 1, 50), episode)
    assert paired.low < -3 < paired.high < 0
    with pytest.raises(ValueError, match="2 values and 3 references"):
        metrics.paired_difference([1, 2], [1, 2, 3])


def test_speedup_of_medians_paired_and_not():
    times = np.array([1.0, 2.0, 3.0, 4.0, 50.0])
    assert metrics.speedup(4 * times, times, paired=True) == (4, 4, 4)
    loose = metrics.speedup(4 * times, times)
    assert loose.low < loose.estimate == 4 < loose.high
    assert metrics.speedup([6.0, 2.0], [1.0, 3.0], statistic=np.mean).estimate == 2
    with pytest.raises(ValueError, match="not positive"):
        metrics.speedup([1.0], [0.0])
    with pytest.raises(ValueError, match="not finite"):
        metrics.speedup([1.0], [math.inf])


@pytest.mark.parametrize("values", [[], [1.0, math.nan]])
def test_intervals_refuse_empty_and_not_finite(values):
    with pytest.raises(ValueError, match="at least one, all finite"):
        metrics.bootstrap_ci(values)
    with pytest.raises(ValueError, match="confidence=95"):
        metrics.bootstrap_ci([1.0], confidence=95)


@given(arrays.arrays(np.float64, st.integers(1, 30), elements=FLOATS))
def test_iqm_against_scipy(values):
    assert metrics.iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_iqm_ignores_the_outer_quarters():
    assert metrics.iqm([1000, 2, 3, -1000]) == 2.5
    assert metrics.iqm([[1, 2, 3, 400], [4, 4, 4, 4]], axis=1).tolist() == [2.5, 4]


def test_running_mean_and_time_to_threshold():
    assert metrics.running_mean([2, 4, 6, 8], window=2).tolist() == [2, 3, 5, 7]
    times, values = [10, 20, 30, 40, 50], [0, 100, 0, 100, 100]
    assert metrics.time_to_threshold(times, values, 90, window=2) == 50
    assert metrics.time_to_threshold(times, values, 90, window=1) == 20
    assert metrics.time_to_threshold(times, values, 101, window=1) == math.inf
    assert metrics.time_to_threshold([], [], 1) == math.inf
    with pytest.raises(ValueError, match="window=0"):
        metrics.running_mean([1], window=0)
