"""A context that the model cannot have is refused; the automatic one stays within a sliding window."""

import dataclasses

import pytest

from engine import rules
from engine.compose import compose
from engine.errors import UserError
from engine.models.smollm2 import SHAPE
from engine.pool_size import auto_context


def test_the_automatic_context_stays_within_the_window() -> None:
    narrow = dataclasses.replace(SHAPE, sliding_window=4096)
    assert (SHAPE.longest, narrow.longest) == (8192, 4096)
    assert auto_context("auto", narrow.longest) == 4096
    assert auto_context(100, narrow.longest) == 100
    assert narrow.context_problem(4096) == ""
    assert "sliding window of 4096" in narrow.context_problem(4097)


def test_more_context_than_positions_is_refused_with_the_most_that_works() -> None:
    with pytest.raises(
        UserError, match=r"cache\.max_context=8193 .*8192 positions.*use cache\.max_context=8192"
    ):
        rules.check(compose(["cache.max_context=8193"]))
    rules.check(compose(["cache.max_context=8192"]))
