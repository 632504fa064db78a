"""spec=eagle3 changes the number of steps, nothing else: chains, trees, both loops, any batch and paging."""

from __future__ import annotations

import pytest
import torch
from support.eagle3 import CHAIN, GREEDY, PROMPTS, TREE, bigrams, draft_of, engine, teach
from support.engines import TINY, answers, run

from engine.batch import SeqLens
from engine.params import SamplingParams
from speculative.views import DraftView, Observed

SHAPES = {
    "chain": CHAIN,
    "tree": TREE,
    "one draft": (*CHAIN, "spec.num_steps=1", "spec.num_draft_tokens=2"),
    "seven drafts": (*CHAIN, "spec.num_steps=7", "spec.num_draft_tokens=8"),
    "flat tree": (*CHAIN, "spec.num_steps=1", "spec.topk=4", "spec.num_draft_tokens=5"),
}
SAMPLINGS = {
    "greedy": GREEDY,
    "seeded": SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, seed=4),
    "penalised": SamplingParams(
        max_tokens=20, temperature=0.9, seed=4, repetition_penalty=1.4, frequency_penalty=0.5, min_tokens=8
    ),
}
MANY = [[(7 * i + j * j) % 251 for j in range(3 + 5 * i)] for i in range(16)]
EIGHT = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_those_of_plain_decoding(shape: str, sampling: str, loop: str) -> None:
    params = SAMPLINGS[sampling]
    plain = run(PROMPTS, params, *TINY, "overlap=none")
    with engine(*SHAPES[shape], f"overlap={loop}") as llm:
        teach(llm, bigrams(PROMPTS, params))
        found = answers(llm.generate(PROMPTS, params))
        llm.check()
        counts = llm.metrics.snapshot()
    assert found == plain
    assert counts["accepted_drafts"] > 0
    assert counts["emitted_tokens"] == sum(len(ids) for ids, _, _ in plain)


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_an_untaught_draft_changes_nothing_either(shape: str) -> None:
    """L11: drafts that are always wrong cost steps, nothing else."""
    found = run(PROMPTS, GREEDY, *TINY, *SHAPES[shape], "overlap.debug=true")
    assert found == run(PROMPTS, GREEDY, *TINY, "overlap=none")


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("running", [1, 5, 16])
@pytest.mark.parametrize("shape", ["tree", "seven drafts"])
def test_any_batch_accepts_alike(shape: str, running: int, loop: str) -> None:
    """O5, O7, Q8: the same ids and the same accept length at concurrency 1, 5 and 16."""
    table = bigrams(MANY, EIGHT)
    with engine(*SHAPES[shape], f"scheduler.max_running={running}", f"overlap={loop}") as llm:
        teach(llm, table)
        found = answers(llm.generate(MANY, EIGHT))
        counts = llm.metrics.snapshot()
    assert found == run(MANY, EIGHT, *TINY, "overlap=none")
    with engine(*SHAPES[shape], "scheduler.max_running=1", "overlap=none") as llm:
        teach(llm, table)
        llm.generate(MANY, EIGHT)
        alone = llm.metrics.snapshot()
    assert counts["decode_tokens"] / counts["decode_results"] == pytest.approx(
        alone["decode_tokens"] / alone["decode_results"], rel=0.01
    )


PRESSURES = {
    "retraction": ("cache.tokens=192", "cache.max_context=112", "scheduler.headroom=0"),
    "pages of one": (
        "cache.page_size=1",
        "cache.tokens=160",
        "cache.max_context=112",
        "scheduler.headroom=0",
    ),
    "large pages, small chunks": ("scheduler.chunk_tokens=5", "cache.page_size=64"),
    "two rows": ("scheduler.max_running=2", "cache=none"),
}


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize("pressure", PRESSURES)
def test_under_pressure(pressure: str, shape: str) -> None:
    """K8, K10: retracted requests come back with a whole draft."""
    with engine(*SHAPES[shape], *PRESSURES[pressure], "sampling.max_tokens=9") as llm:
        teach(llm, bigrams(PROMPTS, GREEDY))
        found = answers(llm.generate(PROMPTS, GREEDY))
        llm.check()
        counts = llm.metrics.snapshot()
    assert found == run(PROMPTS, GREEDY, *TINY, "overlap=none")
    assert counts["accepted_drafts"] > 0
    if pressure == "retraction":
        assert counts["retractions"] > 0


def test_rows_that_are_reused_at_once() -> None:
    """O3: one-token requests chase each other through two rows while late draft-extends still run."""
    params = [SamplingParams(max_tokens=1 + i % 3, ignore_eos=True) for i in range(60)]
    prompts = [[i % 250 + 1, 7, i % 13] for i in range(60)]
    plain = run(prompts, params, *TINY, "overlap=none")
    for shape in (CHAIN, TREE):
        with engine(*shape, "scheduler.max_running=2") as llm:
            found = answers(llm.generate(prompts, params))
            llm.check()
        assert found == plain


@pytest.mark.parametrize("shape", ["chain", "tree", "one draft", "flat tree"])
def test_an_idle_batch_goes_through_every_forward(shape: str) -> None:
    """T4: zero requests, as a rank without work has them."""
    with engine(*SHAPES[shape], "overlap=none") as llm:
        drafter, table = llm._container.speculator(), llm._container.table()
        calls: list[int] = []
        draft = draft_of(llm)
        run = draft.run
        vars(draft)["run"] = lambda *given: (calls.append(given[0].size), run(*given))[1]
        none = torch.zeros(0, dtype=torch.int64)
        width = drafter.plan.width
        view = DraftView(
            table.tokens, none, SeqLens(none.int(), ()), table.relay, table.page_table, 16,
            torch.zeros(1, dtype=torch.int32), width,
        )  # fmt: skip
        tree = drafter.propose(view)
        shape_of = llm._container.model().shape
        hidden = torch.zeros(0, shape_of.hidden_size)
        aux = torch.zeros(0, draft.shape.states_width)
        empty = torch.zeros(0, width, dtype=torch.int32)
        drafter.observe(view, Observed(tree, empty, empty, none.int(), empty, hidden, aux))
    assert tree.tokens.shape == tree.parent.shape == (0, width)
    levels = drafter.plan.longest_run - 2
    assert calls == [0] * (levels + 1), "every drafting forward, and the draft-extend"
