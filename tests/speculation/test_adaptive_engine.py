"""Adaptive width in the engine: it goes up and down, pauses and comes back, and the output stays the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from support.engines import TINY, answers, make

from engine.batch import ScheduledStep
from engine.params import SamplingParams
from engine.scheduler import Scheduler
from engine.step_costs import as_document
from speculative.base import NoSpeculation, SpecPlan
from speculative.width import StepCosts, WidthChoice, WidthPolicy

PROMPTS = [[5, 6, 7, 8], [9, 8, 7], [100, 101, 102], [42] * 9, [7, 8] * 6]
PARAMS = SamplingParams(max_tokens=90, ignore_eos=True)
DUMMY = (*TINY, "spec=eagle3", "spec.load=dummy", "spec.adaptive=true")
SMALL = ("cache.tokens=512", "cache.page_size=16", "scheduler.chunk_tokens=5")  # retractions, chunks


@pytest.fixture(scope="module")
def plain() -> list[tuple[tuple[int, ...], str, str]]:
    with make(*TINY, "overlap=none") as llm:
        return answers(llm.generate(PROMPTS, PARAMS))


def cheap(folder: Path, widths: tuple[int, ...]) -> str:
    """Drafts cost next to nothing, so that probes are frequent although every draft is wrong."""
    seconds = {(b, w): 1 + 0.02 * (w - 1) for b in (1, 8) for w in widths}
    file = folder / "costs.json"
    file.write_text(json.dumps(as_document(StepCosts(seconds, {1: 0.001, 8: 0.001}))))
    return f"step_costs={file}"


@pytest.mark.parametrize("overlap", ["none", "future"])
@pytest.mark.parametrize("more", [(), SMALL])
@pytest.mark.parametrize(
    ("spec", "widths"),
    [((), (1, 2, 3, 4, 5)), (("spec.topk=2", "spec.num_steps=2", "spec.num_draft_tokens=6"), (1, 6))],
)
def test_output_is_plain_decodings_while_the_width_goes_up_and_down(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain: list[tuple[tuple[int, ...], str, str]],
    spec: tuple[str, ...],
    widths: tuple[int, ...],
    more: tuple[str, ...],
    overlap: str,
) -> None:
    steps: list[ScheduledStep] = []
    original = Scheduler._verify

    def recorded(self: Scheduler) -> ScheduledStep | None:
        step = original(self)
        steps.extend([] if step is None else [step])
        return step

    monkeypatch.setattr(Scheduler, "_verify", recorded)
    with make(*DUMMY, *spec, *more, cheap(tmp_path, widths), f"overlap={overlap}") as llm:
        assert answers(llm.generate(PROMPTS, PARAMS)) == plain
        llm.check()
    chosen = [step.width for step in steps]
    changes = sum(a != b for a, b in pairwise(chosen))
    assert changes >= 6, "the width went up and down"
    assert any(step.resume for step in steps)
    assert all(step.width > 1 for step in steps if step.resume)


class Told(WidthPolicy):
    """Counts how often each request was prefilled; a step of one that was not fails."""

    widest = 1

    def open(self) -> list[int]:
        return [0]

    def prefilled(self, record: object) -> None:
        assert isinstance(record, list)
        record[0] += 1

    def choose(self, records: Sequence[object], declined: int = 0) -> WidthChoice:
        assert all(record != [0] for record in records)
        return WidthChoice(1)


class Watched(NoSpeculation):
    """Plain decoding under that policy, whose records are kept."""

    def __init__(self) -> None:
        self.plan = SpecPlan()
        self.records: list[list[int]] = []

    def width_policy(self, costs: StepCosts | None) -> WidthPolicy:
        policy, records = Told(), self.records

        def opened() -> list[int]:
            records.append([0])
            return records[-1]

        policy.open = opened  # type: ignore[method-assign]
        return policy


@pytest.mark.parametrize("overlap", ["none", "future"])
def test_the_policy_hears_of_every_prefill_and_of_those_after_a_retraction(overlap: str) -> None:
    small = ("cache.tokens=256", "cache.page_size=16", "cache.max_context=200", "sampling.max_tokens=90")
    watched = Watched()
    with make(*TINY, *small, f"overlap={overlap}", parts={"speculator": watched}) as llm:
        llm.generate(PROMPTS, PARAMS)
        retractions = llm.metrics.retractions
    assert retractions > 0
    assert sum(count for (count,) in watched.records) == len(PROMPTS) + retractions
