"""The width policy: what it promises of a request without repetition, of a loop, and of a change between."""

from __future__ import annotations

import copy
import random

import pytest

from speculative.ngram.backoff import (
    ROW_COST,
    NgramWidth,
    Record,
    expected_run,
    widths_up_to,
)
from speculative.ngram.signal import MOST, STREAK_SHIFT, Signal, unpack_signal
from speculative.width import FixedWidth, StepCosts, WidthPolicy

LAG = 2  # a choice sees the results up to two steps before


def pack_signal(signal: Signal) -> int:
    """As the drafter does on the device."""
    return signal.match | min(signal.streak, MOST) << STREAK_SHIFT


def policy(widest: int = 8, costs: StepCosts | None = None, device: str = "cpu") -> NgramWidth:
    return NgramWidth(widest, 7, costs, device)


class Text:
    """One request: at every position a match length and how many of the drafts there are right."""

    def __init__(self, positions) -> None:
        self.positions = positions
        self.at = self.streak = 0

    @property
    def done(self) -> bool:
        return self.at >= len(self.positions)

    def step(self, width: int) -> tuple[int, int, int, int]:
        match, right = self.positions[self.at] if not self.done else (0, 0)
        drafted = width - 1 if match else 0
        accepted = min(right, drafted)
        signal = pack_signal(Signal(match, self.streak))
        self.streak = self.streak + 1 if match and right else 0
        self.at += accepted + 1
        return width, drafted, accepted, signal


def play(widths: NgramWidth, texts, row=ROW_COST["cpu"]):
    """(speed over plain decoding by the built-in cost, widths chosen); the texts start as one batch."""
    plain, _ = timed(FixedWidth(1), copy.deepcopy(texts), row)
    spent, chosen = timed(widths, texts, row)
    return plain / spent, chosen


def timed(widths: WidthPolicy, texts, row):
    records = {id(text): widths.open() for text in texts}
    waiting: list = []
    chosen, spent = [], 0.0
    while running := [text for text in texts if not text.done]:
        if len(waiting) >= LAG:
            for record, result in waiting.pop(0):
                widths.learn(record, *result)
        width = widths.choose([records[id(text)] for text in running]).width
        chosen.append(width)
        spent += 1 + row * (len(running) * width - 1)
        waiting.append([(records[id(text)], text.step(width)) for text in running])
    return spent, chosen


NOTHING = [(0, 0)] * 300
LOOP = [(8, 7)] * 300


def chance(seed: int, hit: float, length: int = 300, match=(1, 2, 3)):
    draw = random.Random(seed)
    return [
        (draw.choice(match), 1 if draw.random() < hit else 0) if draw.random() < 0.5 else (0, 0)
        for _ in range(length)
    ]


@pytest.mark.parametrize("batch", [1, 5, 16])
def test_without_matches_every_step_is_plain(batch):
    """N2: nothing found, nothing paid."""
    _, chosen = play(policy(), [Text(NOTHING) for _ in range(batch)])
    assert set(chosen) == {1}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hit", [0.0, 0.1, 0.3, 0.5])
def test_never_slower_than_97_percent(hit, seed):
    """Also where matches are long, which promises much, and drafts fail all the same."""
    for match in ((1, 2, 3), (8,)):
        for batch in (1, 4):
            texts = [Text(chance(seed + i, hit, match=match)) for i in range(batch)]
            speed, _ = play(policy(), texts)
            assert speed >= 0.975, "0.97 with room for the lookup itself"


def test_a_trap_is_left():
    """Shadow drafts come true, real ones never: the worst text there can be."""

    class Trap(Text):
        def step(self, width):
            self.positions[self.at] = (8, 1 if width == 1 else 0)
            return super().step(width)

    speed, chosen = play(policy(), [Trap(list(NOTHING))])
    assert speed >= 0.97
    assert max(chosen) > 1, "it was tempted"


def test_a_loop_is_drafted_at_full_width():
    speed, chosen = play(policy(), [Text(list(LOOP))])
    assert chosen[0] == 1
    assert chosen[-10:-2] == [8] * 8
    assert speed > 3.0


def test_it_comes_back_from_plain_steps_and_leaves_again():
    speed, chosen = play(policy(), [Text(NOTHING + LOOP + NOTHING)])
    assert set(chosen[:300]) == {1}
    assert 8 in chosen
    assert set(chosen[-200:]) == {1}
    assert speed > 1.2


def test_a_batch_weighs_its_requests():
    """A loop among many plain requests is not worth their time; most of them in loops are."""
    alone, chosen = play(policy(), [Text(LOOP[:40]), *[Text(list(NOTHING)) for _ in range(15)]])
    assert alone >= 0.97
    assert set(chosen) == {1}
    together, chosen = play(policy(), [*[Text(LOOP * 2) for _ in range(3)], Text(list(NOTHING))])
    assert together > 1.2
    assert chosen[20] > 1


def test_requests_that_decline_drafts_are_paid_for():
    """They make a step with drafts dearer, and gain nothing by it."""
    assert policy().choose([Record(rate=0.9)]).width > 1
    assert policy().choose([Record(rate=0.9)], declined=15).width == 1
    record = Record(rate=0.9, owed=-1000.0)
    free = {(b, w): 1.0 + 1e-3 * (w - 1) for b in (1, 2) for w in widths_up_to(8)}
    assert policy(costs=StepCosts(free)).choose([record], declined=1).width == 8
    assert record.owed == pytest.approx(-1000.0 + 2 * 0.007), "both requests' time is charged to it"


def test_measured_costs_decide():
    def costs(step: float) -> StepCosts:
        return StepCosts({(b, w): 1 + step * (w - 1) for b in (1, 8) for w in widths_up_to(8)})

    def last(step: float) -> int:
        return play(policy(costs=costs(step)), [Text(list(LOOP))])[1][-3]

    assert last(0.01) == 8
    assert last(1.2) == 1, "a draft that costs more than a step never pays"
    assert policy(device="cuda").choose([Record(rate=0.4)] * 16).width > 1
    assert policy(device="cpu").choose([Record(rate=0.4)] * 16).width == 1


def test_a_wavering_measurement_makes_no_width_free():
    seconds = {(1, w): cost for w, cost in zip(widths_up_to(8), (2.0, 1.0, 2.4, 2.2, 2.2), strict=True)}
    assert policy(costs=StepCosts(seconds))._relative_costs(1) == (1.0, 1.0, 1.2, 1.2, 1.2)


def test_it_is_a_function_of_results():
    texts = lambda: [Text(chance(1, 0.6)), Text(list(LOOP)), Text(list(NOTHING))]  # noqa: E731
    assert play(policy(), texts()) == play(policy(), texts())


def test_a_retracted_request_forgets_its_last_step():
    widths = policy()
    record = widths.open()
    assert isinstance(record, Record)
    widths.learn(record, 1, 0, 0, pack_signal(Signal(5, 0)))
    before = record.rate
    widths.prefilled(record)
    widths.learn(record, 1, 0, 0, pack_signal(Signal(5, 0)))
    assert record.rate == before, "no streak says nothing about the step before the prefill"
    widths.learn(record, 1, 0, 0, pack_signal(Signal(5, 0)))
    assert record.rate < before


@pytest.mark.parametrize(
    ("right", "width", "depth", "run"), [(1.0, 8, 7, 8.0), (0.0, 8, 7, 1.0), (0.5, 3, 7, 1.75)]
)
def test_expected_run_of_a_chain(right, width, depth, run):
    assert expected_run(right, width, depth) == pytest.approx(run)


def test_a_second_branch_helps_little():
    chain, tree = expected_run(0.5, 8, 7), expected_run(0.5, 15, 7)
    assert chain < tree < chain + 0.5
    assert expected_run(0.0, 15, 7) == 1.0


@pytest.mark.parametrize(
    ("widest", "widths"), [(2, (1, 2)), (5, (1, 2, 3, 5)), (8, (1, 2, 3, 5, 8)), (15, (1, 2, 3, 5, 8, 15))]
)
def test_widths(widest, widths):
    assert widths_up_to(widest) == widths


@pytest.mark.parametrize(
    ("packed", "signal"),
    [(0, Signal(0, 0)), (8, Signal(8, 0)), (0x0720, Signal(32, 7)), (0xFFFF, Signal(MOST, MOST))],
)
def test_the_fields_of_a_signal(packed, signal):
    assert unpack_signal(packed) == signal
