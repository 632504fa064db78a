"""The figure that jobs are judged by, as a person reads it: with its name and unit."""

from __future__ import annotations

import pytest

from engine.sweeps.figure import MainFigure


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("output_tokens_per_s", 57.56, "output 57.6 tokens/s"),
        ("output_tokens_per_s", 15328.2, "output 15,300 tokens/s"),
        ("ttft_ms.p50", 120.0, "first token p50 120 ms"),
        ("accuracy", 0.555, "accuracy 55.5%"),
        ("output_tokens", 2.0, "output tokens 2"),
        ("some.figure_of_a_task", 0.25, "some.figure_of_a_task 0.250"),
    ],
)
def test_a_figure_is_told_with_its_name_and_unit(name: str, value: float, words: str) -> None:
    assert MainFigure(name).shown(value) == words
