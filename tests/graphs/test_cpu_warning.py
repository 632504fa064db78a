"""What a user of graphs on a CPU is told before the wait: what they are for, and what makes it short."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from graph_cases import PLAIN
from support.engines import TINY, make

from engine.graphs.step_mode import StepGraph

SIZES = pytest.mark.parametrize(("sizes", "count"), [("auto", 3), ((1, 2), 2), ((1,), 1)])


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "without a GPU" in record.message]


@SIZES
def test_a_cpu_is_told_how_to_start_soon(
    sizes: str | tuple[int, ...], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    mode = StepGraph(StepGraph.Config(sizes=sizes))
    with caplog.at_level(logging.WARNING, "syncless"):
        mode.announce("graph=step", SimpleNamespace(device="cpu", max_running=4))
        mode.announce("graph=step", SimpleNamespace(device="cuda", max_running=4))
    (line,) = told(caplog)
    assert line.startswith("graph=step without a GPU replays recorded operations: for checks")
    assert (f"all {count} batch sizes" in line) is (count > 1)
    assert ("graph.sizes=[1] captures one alone" in line) is (count > 1)


def test_an_engine_tells_it_once_and_what_it_names_works(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "syncless"):
        with make(*TINY, *PLAIN, "attention=torch", "graph=forward") as llm:
            assert llm.generate(["Hi"])[0].completions[0].token_ids
        assert [line.count("graph.sizes=[1]") for line in told(caplog)] == [1]
        caplog.clear()
        with make(*TINY, *PLAIN, "attention=torch", "graph=forward", "graph.sizes=[1]") as llm:
            assert llm.generate(["Hi", "Ho"])[1].completions[0].token_ids
    (line,) = told(caplog)
    assert "graph.sizes" not in line
