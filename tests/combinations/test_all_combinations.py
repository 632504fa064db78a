"""Every combination of drafting, loop, graphs, prefill graphs and two batches runs with the reference's
answers, or is refused by a rule within two seconds, with its reason.

On the CPU all combinations of attention=torch run, and of attention=triton, which is interpreted there, as
many as cover every pair of choices; on a GPU all of them.
"""

from __future__ import annotations

import time

import pytest
from combination_cases import (
    COMMON,
    CPU,
    LONGEST,
    TOKENS,
    TORCH,
    TRITON,
    accepted_triton,
    assert_helpful,
    reasons,
)

from benchmarks.combination_cells import GROUPS, Cell, choices, covering
from benchmarks.combinations import Outcome, Reference, refused
from engine.conf_tree import conf_tree
from engine.tasks.compare import Verdict

PARTS = 4


def name(cell: Cell) -> str:
    return "-".join(cell.names.values())


def assert_equal(outcome: Outcome) -> None:
    """Prompts of the tiny model were chosen without near-ties: no divergence at all is allowed."""
    assert outcome.failure == "", name(outcome.cell)
    assert [found.verdict for found in outcome.found] == [Verdict.PASS] * 5, name(outcome.cell)
    counts, names = outcome.counts, outcome.cell.names
    assert (counts["graph_prefills"] > 0) == (names["pcg"] != "none"), name(outcome.cell)
    assert (counts["split_passes"] > 0) == (names["tbo"] == "two_batch"), name(outcome.cell)
    assert counts["eager_decode_steps"] == 0, name(outcome.cell)


@pytest.fixture(scope="module")
def reference():
    made = Reference(CPU, TOKENS, LONGEST)
    yield made
    made.llm.close()


@pytest.mark.parametrize("cell", TORCH, ids=name)
def test_combination_with_torch(cell, reference):
    start = time.process_time()
    said = reasons(cell)
    if said:
        assert time.process_time() - start < 2.0
        assert_helpful(said)
    else:
        assert_equal(reference.outcome(cell))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_choices_with_triton(part, reference):
    chosen = covering(accepted_triton())
    assert len(chosen) >= PARTS
    for cell in chosen[part::PARTS]:
        assert_equal(reference.outcome(cell))


def test_what_triton_refuses_it_refuses_with_a_reason():
    wrong = [cell for cell in TRITON if cell not in accepted_triton()]
    for cell in wrong:
        assert_helpful(reasons(cell))
    assert len(accepted_triton()) > len(wrong)
    assert all(cell.names["pcg"] == "full" and cell.names["tbo"] == "two_batch" for cell in wrong)


@pytest.mark.parametrize("cell", [TORCH[0], TORCH[-1], TRITON[-1]], ids=name)
def test_a_refusal_takes_less_than_two_seconds_and_is_that_of_a_command_line(cell):
    refused(TORCH[0], CPU)  # what a process does once
    start = time.process_time()
    said = refused(cell, CPU)
    assert time.process_time() - start < 2.0
    assert list(said) == reasons(cell)


def test_options_join_by_themselves():
    for group in GROUPS:
        overrides = {choice.override for choice in choices(group)}
        assert overrides == {f"{group}={option}" for option in conf_tree().groups[group]}


@pytest.mark.gpu
@pytest.mark.parametrize("every", [TORCH, TRITON], ids=["torch", "triton"])
def test_every_combination_on_a_gpu(every):
    common = (*COMMON, "device=cuda", "cache.tokens=2048", "scheduler.chunk_tokens=64")
    made = Reference(common, 24, 40)
    try:
        outcomes = [made.outcome(cell) for cell in every]
    finally:
        made.llm.close()
    for outcome in outcomes:
        if outcome.refused:
            assert_helpful(list(outcome.refused))
        else:
            assert outcome.good, f"{name(outcome.cell)}: {outcome.verdict}"
    missing = [outcome.missing for outcome in outcomes if outcome.missing]
    if missing:
        pytest.skip(f"{len(missing)} combinations found no room on this card: {missing[0]}")
    assert sum(outcome.ran for outcome in outcomes) >= 48
