"""Intervals and p values against scipy; no interval from too few repeats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from engine.report.stats import adjusted, paired_ratio, ratio, t_quantile, t_tail


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 31, 200])
def test_t_equals_scipy(freedom):
    for t in (0.0, 0.3, 1.0, 2.7, 12.0, -3.1):
        assert t_tail(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)
    for level in (0.9, 0.95, 0.99):
        expected = stats.t.ppf((1 + level) / 2, freedom)
        assert t_quantile(freedom, level) == pytest.approx(expected, rel=1e-8)


def test_ratio_of_repeats_is_welch_on_logarithms():
    ours, base = [151.0, 149.0, 156.0, 148.0], [100.0, 104.0, 97.0]
    found = ratio(ours, base)
    test = stats.ttest_ind(np.log(ours), np.log(base), equal_var=False)
    assert found.value == pytest.approx(math.exp(np.log(ours).mean() - np.log(base).mean()))
    freedom = math.floor(test.df)
    error = (np.log(ours).mean() - np.log(base).mean()) / test.statistic
    reach = stats.t.ppf(0.975, freedom) * error
    assert (found.low, found.high) == pytest.approx(
        (found.value * math.exp(-reach), found.value * math.exp(reach))
    )
    assert found.p == pytest.approx(2 * stats.t.sf(test.statistic, freedom))
    assert found.p >= test.pvalue  # rounding the degrees of freedom down is on the safe side


def test_pairs_are_one_sample_on_logarithms_and_beat_unpaired_noise():
    base = [100.0, 200.0, 50.0, 400.0]  # differs by pair, the ratio hardly does
    ours = [110.0, 222.0, 54.0, 441.0]
    found = paired_ratio(list(zip(ours, base, strict=True)))
    interval = stats.ttest_1samp(np.log(np.divide(ours, base)), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert found.low > 1.05
    assert ratio(ours, base).low < 1 < ratio(ours, base).high


@pytest.mark.parametrize(
    ("ours", "base"), [([2.0], [1.0]), ([2.0, 2.1], [1.0, 1.0, 1.0]), ([2.0] * 3, [1.0] * 2)]
)
def test_fewer_than_three_repeats_claim_no_interval(ours, base):
    found = ratio(ours, base)
    assert found.value == pytest.approx(2.0, rel=0.03)
    assert (found.low, found.high, found.p) == (None, None, None)


def test_equal_values_need_no_division():
    assert (ratio([3.0] * 3, [3.0] * 3).low, ratio([3.0] * 3, [3.0] * 3).p) == (1.0, 1.0)
    assert ratio([6.0] * 3, [3.0] * 3).p == 0.0
    assert ratio([0.0, 0.0], [1.0]) is None
    assert paired_ratio([]) is None


def test_coverage_of_the_interval():
    """95% of the intervals from three noisy repeats hold the true ratio."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        ours, base = (list(np.exp(rng.normal(mean, 0.05, 3))) for mean in (math.log(1.3), 0.0))
        found = ratio(ours, base)
        hits += found.low <= 1.3 <= found.high
    assert hits >= 0.93 * 400


def test_holm_equals_its_definition():
    values = [0.04, 0.001, 0.03, 0.2]
    assert adjusted(values) == pytest.approx([0.09, 0.004, 0.09, 0.2])
    assert adjusted([]) == []
