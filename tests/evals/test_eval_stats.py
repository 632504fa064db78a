"""Wilson's interval and McNemar's exact test against scipy, and where they must hold without it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from engine.evals.stats import mcnemar, wilson


@given(st.integers(1, 400), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_wilson_is_scipys(of: int, share: float, confidence: float) -> None:
    correct = round(of * share)
    found = wilson(correct, of, confidence)
    wanted = binomtest(correct, of).proportion_ci(confidence, method="wilson")
    assert found.value == correct / of
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= correct / of <= found.high <= 1


def test_a_share_of_nothing_has_no_interval() -> None:
    found = wilson(0, 0)
    assert (found.value, found.low, found.high) == (None, None, None)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_the_exact_binomial_test(first: int, second: int) -> None:
    wanted = binomtest(first, first + second, 0.5).pvalue if first + second else 1.0
    assert mcnemar(first, second) == pytest.approx(wanted, rel=1e-9)
    assert mcnemar(first, second) == mcnemar(second, first)


def test_mcnemar_holds_where_floats_do_not() -> None:
    assert mcnemar(5000, 5000) == 1.0
    assert 0 < mcnemar(400, 600) < 1e-9
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(0, 5) == pytest.approx(2 / 32)
