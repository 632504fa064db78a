"""What each kernel of a step adds to it, when several run side by side; how commands take their overrides."""

from __future__ import annotations

import pytest

from benchmarks import tables
from benchmarks.step_kernels import Kernel, additions, by_name

US = 1e-6


def test_a_kernel_that_waits_beside_another_adds_what_it_ends_later() -> None:
    """The second starts early and waits; the third lies wholly within the second."""
    first, second, third = Kernel("a", 0, 10 * US), Kernel("b", 2 * US, 12 * US), Kernel("c", 3 * US, 5 * US)
    found = {kernel.name: added for kernel, added in additions([second, third, first])}
    assert found == pytest.approx({"c": 0, "a": 2 * US, "b": 4 * US})


def test_additions_sum_up_to_the_time_between_the_first_end_and_the_last() -> None:
    kernels = [Kernel("ab"[i % 2], 3 * i * US, 4 * US) for i in range(8)]  # two steps of four kernels
    rows = by_name(kernels, 2)
    assert sum(row["adds to a step, us"] for row in rows) == pytest.approx(21 / 2)
    assert [row["runs a step"] for row in rows] == [2, 2]
    assert [row["kernel"] for row in rows] == ["b", "a"]  # what adds most comes first
    assert rows[0]["a run adds, us"] == pytest.approx(3)
    assert rows[0]["a run takes, us"] == pytest.approx(4)


@pytest.mark.parametrize("words", [["a=1", "--json", "x", "b=2"], ["--json", "x", "a=1", "b=2"]])
def test_overrides_stand_anywhere(words: list[str]) -> None:
    given = tables.parser("about").parse_args(words)
    assert given.overrides == ["a=1", "b=2"]
    assert str(given.json) == "x"
