"""What adaptive width keeps of each request: pauses and probes, cold drafts, requests that get no drafts."""

from __future__ import annotations

from itertools import pairwise

from decoding_model import Req, constant, costs, decode
from width_policy import DEPTHS, drive, policy

from speculative.adaptive import LAST_GAP, WARM_TOKENS, AdaptiveWidth
from speculative.width import StepCosts


def test_requests_without_drafts_teach_nothing_about_the_others() -> None:
    """Drafts switched off for a request, or too long for the draft: it never gets any."""
    table = costs(0.1)
    silent = [Req(constant(0, 0, 0, 0), 100, drafts=False) for _ in range(6)]
    trace = decode(policy(table), table, silent, seed=2)
    assert max(trace.widths[1:].count(w) for w in DEPTHS) <= 12, "each is tried a few times, then left alone"
    wide = policy(table)
    decode(wide, table, silent, seed=2)
    assert wide.open().runs == policy(table).open().runs


def test_requests_that_decline_drafts_are_paid_for() -> None:
    """They make a step with drafts dearer, and gain nothing by it."""
    table = StepCosts({(b, w): 1.0 + 0.02 * b * (w - 1) for b in (1, 2, 8, 16) for w in (1, *DEPTHS)})
    widths = []
    for declined in (0, 15):
        chosen = policy(table)
        record = chosen.open()
        chosen.prefilled(record)
        widths.append(chosen.choose([record], declined).width)
    assert widths[0] > 1
    assert widths[1] == 1


def test_resume_is_set_exactly_where_the_last_step_had_no_drafts() -> None:
    table = costs(0.2)
    chosen = policy(table)
    record = chosen.open()
    chosen.prefilled(record)
    steps = drive(chosen, record, 400)
    assert not steps[0].resume, "the prefill was the draft's too"
    for before, now in pairwise(steps):
        if now.width > 1:
            assert now.resume == (before.width == 1)
        else:
            assert not now.resume


def test_probes_get_rarer_and_no_pause_makes_the_draft_cold_while_they_are_affordable() -> None:
    chosen = policy(costs(0.05, resume=0.0))
    record = chosen.open()
    chosen.prefilled(record)
    at = [i for i, choice in enumerate(drive(chosen, record, 2000)) if choice.width > 1]
    gaps = [b - a for a, b in pairwise(at) if b - a > 1]
    assert gaps[0] <= gaps[1] <= gaps[2]
    assert set(gaps[-10:]) == {LAST_GAP + 1}
    assert not record.cold


def test_a_request_that_paused_too_long_expects_nothing_until_it_is_prefilled_again() -> None:
    table = costs(3.0)  # no width can pay, so nothing is ever tried
    chosen = policy(table)
    record = chosen.open()
    chosen.prefilled(record)
    steps = drive(chosen, record, WARM_TOKENS + 1)
    assert {choice.width for choice in steps} == {1}
    assert record.cold
    cheap = AdaptiveWidth(DEPTHS, costs(0.01), (0.9, 0.8, 0.7, 0.6))
    assert {c.width for c in drive(cheap, record, 50)} == {1}, "drafts would be nearly free, but none can hit"
    cheap.prefilled(record)
    first = cheap.choose([record])
    assert first.width > 1
    assert not first.resume


def test_a_cold_request_rides_along_with_warm_ones() -> None:
    chosen = policy(costs(0.1))
    cold, warm = chosen.open(), chosen.open()
    for record in (cold, warm):
        chosen.prefilled(record)
    cold.paused = WARM_TOKENS + 1
    choice = chosen.choose([cold, warm])
    assert choice.width > 1
    assert not choice.resume, "there is nothing to catch up with"
    chosen.learn(cold, choice.width, 0, 0, 0)
    chosen.learn(warm, choice.width, choice.width - 1, choice.width - 1, 0)
    assert cold.cold
