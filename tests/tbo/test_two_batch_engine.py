"""`tbo=two_batch` changes no answer: odd batches, chunks, drafts, both loops, both backends, host lengths."""

from __future__ import annotations

import logging

import pytest
from support.engines import FAKE, TINY, answers, make, run

from engine.params import SamplingParams

PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 11 * i)] for i in range(5)]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
ALWAYS = ("tbo=two_batch", "tbo.min_tokens=2")
TREE = ("spec=eagle3", "spec.load=dummy", "spec.topk=3", "spec.num_steps=3", "spec.num_draft_tokens=9")
PATHS = {
    "plain": (),
    "serial, chunks": ("overlap=none", "scheduler.chunk_tokens=13"),
    "debug": ("overlap.debug=true",),
    "triton": ("attention=triton",),
    "hybrid": ("attention=hybrid",),
    "chain": ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false"),
    "tree": (*TREE, "spec.adaptive=false"),
    "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3"),
    "piecewise": ("pcg=piecewise", "pcg.buckets=[16,32,64,128]"),
    "piecewise, lazy, chunks": ("pcg=piecewise", "pcg.capture=lazy", "scheduler.chunk_tokens=30"),
}


@pytest.fixture(scope="module")
def reference():
    return run(PROMPTS, GREEDY, *TINY, "overlap=none", "cache=none", "scheduler.max_running=1")


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_those_of_one_batch(path, reference):
    with make(*TINY, *ALWAYS, *PATHS[path]) as llm:
        before = llm.metrics.split_passes
        assert answers(llm.generate(PROMPTS, GREEDY)) == reference
        llm.check()
        assert llm.metrics.split_passes - before >= 5


def test_a_model_that_never_stops_runs_as_two_halves():
    plain = run(PROMPTS, GREEDY, *FAKE, "overlap=none")
    with make(*FAKE, *ALWAYS) as llm:
        assert answers(llm.generate(PROMPTS, GREEDY)) == plain
        assert llm.metrics.split_passes > 0


def test_small_passes_run_as_one_batch_and_are_counted(caplog, reference):
    """B3: said at start, and again when a pass is not split."""
    with (
        caplog.at_level(logging.WARNING, "syncless"),
        make(*TINY, "tbo=two_batch", "tbo.min_requests=4") as llm,
    ):
        assert answers(llm.generate(PROMPTS, GREEDY)) == reference
        assert llm.metrics.split_passes == 1  # the prefill pass
        assert llm.metrics.unsplit_passes >= 5
    found = [record.getMessage() for record in caplog.records if "tbo=two_batch" in record.getMessage()]
    assert len(found) == 2
    assert "nothing to overlap" in found[0]
    assert "runs as one batch" in found[1]
    assert "tbo.min_tokens=32" in found[1]


def test_one_request_alone_works(reference):
    with make(*TINY, *ALWAYS, "scheduler.max_running=1") as llm:
        assert answers(llm.generate(PROMPTS, GREEDY)) == reference
        assert llm.metrics.split_passes == 0
