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


@pytest.mark.parametrize("pairs", [3, 4, 10, 30])
def test_95_percent_covers_as_often_as_it_says(pairs):
    simulations, true_ratio, true_difference = 3000, 2.5, -3.0
    rng = np.random.default_rng(pairs)
    round_speed = rng.lognormal(0.0, 0.5, (simulations, pairs))  # what both sides of a pair share
    noise = rng.lognormal(0.0, 0.2, (2, simulations, pairs))
    baseline, values = true_ratio * round_speed * noise[0], round_speed * noise[1]
    logs = np.log(baseline) - np.log(values)
    hits = 0
    for chunk in np.array_split(logs, 50):  # a bootstrap of all at once would take gigabytes
        low, high = metrics.mean_bounds(chunk)
        hits += ((low <= math.log(true_ratio)) & (math.log(true_ratio) <= high)).sum()
    assert 0.925 <= hits / simulations <= 0.975
    for row in range(20):  # the public functions are these bounds
        low, high = metrics.mean_bounds(logs[row])
        ratio = metrics.paired_ratio(baseline[row], values[row])
        assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
        difference = metrics.paired_difference(logs[row] + true_difference, np.zeros(pairs))
        assert (difference.low, difference.high) == pytest.approx((low + true_difference, high + true_difference))


def test_paired_ratio_by_hand():
    # Ratios 1, 2, 4: logarithms 0, 1, 2 in units of log 2; mean 1, deviation 1, t of 2 degrees of freedom 4.3027.
    ratio = metrics.paired_ratio([1.0, 4.0, 4.0], [1.0, 2.0, 1.0])
    assert ratio.estimate == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2 ** (1 - 4.30265 / 3**0.5), rel=1e-4)
    assert ratio.high == pytest.approx(2 ** (1 + 4.30265 / 3**0.5), rel=1e-4)
    inverse = metrics.paired_ratio([1.0, 2.0, 1.0], [1.0, 4.0, 4.0])
    assert (1 / inverse.estimate, 1 / inverse.high, 1 / inverse.low) == pytest.approx(ratio)


def test_paired_difference_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1.
    difference = metrics.paired_difference([11, 22, 33], [10, 20, 30])
    assert difference.estimate == 2
    assert difference.high - 2 == pytest.approx(2 - difference.low) == pytest.approx(4.30265 / 3**0.5, rel=1e-4)
    half = metrics.paired_difference([11, 22, 33], [10, 20, 30], confidence=0.5)
    assert half.high - 2 == pytest.approx(0.81650 / 3**0.5, rel=1e-4)


def test_from_thirty_on_the_interval_is_a_bca_bootstrap_that_repeats_by_seed():
    values = np.random.default_rng(3).gamma(2.0, 10.0, 30)
    ours = metrics.mean_interval(values, seed=1)
    theirs = stats.bootstrap((values,), np.mean, method="BCa", n_resamples=20000, rng=2).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=0.02)
    assert ours == metrics.mean_interval(values, seed=1) != metrics.mean_interval(values, seed=2)
    few = metrics.mean_interval(values[:29])
    assert few.high - few.estimate == pytest.approx(few.estimate - few.low)  # Student's t: symmetric, without a seed
    assert ours.high - ours.estimate > ours.estimate - ours.low


def test_one_pair_has_no_interval_and_no_pair_no_estimate():
    assert metrics.paired_ratio([6.0], [2.0]) == (pytest.approx(3.0), *[pytest.approx(math.nan, nan_ok=True)] * 2)
    assert np.isnan(metrics.paired_difference([6.0], [2.0])[1:]).all()
    assert np.isnan(metrics.paired_ratio([], [])).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("count", [2, 7, 30, 100])
def test_equal_values_have_an_interval_without_width(count):
    assert metrics.mean_interval([0.1] * count) == pytest.approx((0.1, 0.1, 0.1))
    assert metrics.paired_difference([500] * count, [500] * count) == (0, 0, 0)
    times = np.random.default_rng(0).uniform(1, 50, count)
    assert metrics.paired_ratio(4 * times, times) == pytest.approx((4, 4, 4))


@pytest.mark.filterwarnings("error")
def test_thirty_pairs_of_which_one_differs_have_an_interval_on_its_side():
    low, high = metrics.paired_difference([500] * 29 + [470], [500] * 30)[1:]
    assert -10 < low < -1 <= high <= 0


def test_paired_difference_removes_what_pairs_share():
    rng = np.random.default_rng(0)
    episode = rng.normal(0, 100, 50)
    paired = metrics.paired_difference(episode - 3 + rng.normal(0, 1, 50), episode)
    assert paired.low < -3 < paired.high < 0


def test_intervals_refuse_what_they_cannot_answer():
    with pytest.raises(ValueError, match="2 and 3 values"):
        metrics.paired_difference([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="not positive"):
        metrics.paired_ratio([1.0], [0.0])
    with pytest.raises(ValueError, match="1 of 1 values are not finite"):
        metrics.paired_ratio([1.0], [math.inf])
    with pytest.raises(ValueError, match="at least one"):
        metrics.mean_interval([])
    with pytest.raises(ValueError, match="1 of 2 values are not finite"):
        metrics.mean_interval([1.0, math.nan])
    with pytest.raises(ValueError, match="confidence=95"):
        metrics.mean_interval([1.0], confidence=95)


@given(arrays.arrays(np.float64, st.integers(1, 30), elements=FLOATS))
def test_iqm_against_scipy(values):
    assert metrics.iqm(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_iqm_ignores_the_outer_quarters():
    assert metrics.iqm([1000, 2, 3, -1000]) == 2.5
    assert metrics.iqm([[1, 2, 3, 400], [4, 4, 4, 4]], axis=1).tolist() == [2.5, 4]


def test_running_mean():
    assert metrics.running_mean([2, 4, 6, 8], window=2).tolist() == [2, 3, 5, 7]
    with pytest.raises(ValueError, match="window=0"):
        metrics.running_mean([1], window=0)


@pytest.mark.parametrize(
    ("low", "reference", "floor", "expected"),
    [
        (-23.9, 500, 20, True),  # 5 % of 480 are 24
        (-24.1, 500, 20, False),
        (-50.0, -200, -1200, False),  # on the bound
        (-49.0, -200, -1200, True),
        (10.0, 20, 20, False),  # no range: nothing was learned
        (math.nan, 500, 20, False),  # one seed: no interval
        (1.0, 500, math.nan, False),
    ],
)
def test_not_inferior_is_judged_by_the_lower_end_in_the_range_from_random(low, reference, floor, expected):
    assert metrics.not_inferior(low, reference, floor) is expected
