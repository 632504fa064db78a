"""The acceptance alarm: speaks once when drafts are far worse than their card, and never otherwise."""

from __future__ import annotations

import logging
import random
from collections import Counter

import pytest
from support.drafters import Scripted
from support.engines import TINY, make

from engine.params import SamplingParams
from engine.scheduling.acceptance_watch import EVERY, LEAST, AcceptanceAlarm
from engine.spec_metrics import Run

CARD = (0.75, 0.5, 0.35, 0.2)  # share of steps: 2.8 tokens a step


def runs(rng: random.Random, shares: tuple[float, ...], drafts: int, *, greedy: bool = True) -> Run:
    accepted, before = 0, 1.0
    for share in shares[:drafts]:
        if rng.random() >= share / before:
            break
        accepted, before = accepted + 1, share
    return Run(drafts + 1, drafts, accepted, accepted + 1, greedy)


def warned(caplog: pytest.LogCaptureFixture, steps: int, *args: object, **options: object) -> list[str]:
    alarm, seen, rng = AcceptanceAlarm(CARD, 4), Counter[Run](), random.Random(5)
    with caplog.at_level(logging.WARNING, "syncless"):
        for _ in range(steps):
            seen[runs(rng, *args, **options)] += 1  # type: ignore[arg-type]
            alarm.check(seen)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("scale", [0.0, 0.1, 0.25])
def test_far_worse_is_said_once_with_likely_causes(
    caplog: pytest.LogCaptureFixture, scale: float, drafts: int
) -> None:
    found = warned(caplog, 4000, tuple(scale * share for share in CARD), drafts)
    assert len(found) == 1
    for word in ("hidden layers", "chat template", "rope_theta", "card"):
        assert word in found[0]


@pytest.mark.parametrize("scale", [0.7, 1.0, 1.2])
def test_as_good_as_the_card_or_somewhat_worse_is_silent(
    caplog: pytest.LogCaptureFixture, scale: float
) -> None:
    shares = tuple(min(scale * share, 1.0) for share in CARD)
    assert warned(caplog, 8000, shares, 4) == []


def test_a_few_bad_steps_are_no_evidence(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, LEAST - 1, (0.0,) * 4, 4) == []


def test_sampled_and_cut_runs_and_missing_drafts_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert warned(caplog, 4000, (0.0,) * 4, 4, greedy=False) == []
    alarm = AcceptanceAlarm(CARD, 4)
    seen = Counter({Run(5, 4, 1, 1, True): 9000, Run(5, 0, 0, 1, True): 9000})
    for _ in range(EVERY):
        alarm.check(seen)
    assert not caplog.records


class Promised(Scripted):
    """A drafter whose makers promised much; it is always wrong."""

    def expected_acceptance(self) -> tuple[float, ...]:
        return (0.9, 0.8)


@pytest.mark.parametrize("script", ["wrong", "silent"])
def test_an_engine_sounds_the_alarm(caplog: pytest.LogCaptureFixture, script: str) -> None:
    promised = Promised if script == "wrong" else Scripted
    drafter = promised({}, 512, drafts=2, script="wrong")
    with caplog.at_level(logging.WARNING, "syncless"), make(*TINY, parts={"speculator": drafter}) as llm:
        llm.generate([[7, 8, 9]] * 4, SamplingParams(max_tokens=100, ignore_eos=True))
    assert len(caplog.records) == (1 if script == "wrong" else 0)


def test_forced_acceptance_is_no_evidence(caplog: pytest.LogCaptureFixture) -> None:
    overrides = ("spec=eagle3", "spec.load=dummy", "spec.simulate_accept_length=1")
    with make(*TINY, *overrides) as llm:
        watch = llm._container.alarm()
        draft = llm._container.draft()
        assert not isinstance(watch, AcceptanceAlarm)
    draft.expected = (0.9, 0.8, 0.7, 0.6)
    with make(*TINY, *overrides[:2], parts={"draft": draft}) as llm:
        assert isinstance(llm._container.alarm(), AcceptanceAlarm)
    with make(*TINY, *overrides, parts={"draft": draft}) as llm:
        assert not isinstance(llm._container.alarm(), AcceptanceAlarm)
