"""`pcg=piecewise` changes no answer: chunks, prefix cache, drafts, both loops, both backends."""

from __future__ import annotations

import pytest
from support.engines import TINY, answers, make, run

from engine.params import SamplingParams

PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 11 * i)] for i in range(5)]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
BUCKETS = "pcg.buckets=[16,32,64,128]"
PATHS = {
    "start": (),
    "lazy": ("pcg.capture=lazy",),
    "chunks": ("scheduler.chunk_tokens=40",),
    "chunks of 7, serial": ("scheduler.chunk_tokens=7", "overlap=none", "pcg.capture=lazy"),
    "debug": ("overlap.debug=true",),
    "pages of one": ("cache.page_size=1",),
    "triton": ("attention=triton", "pcg.capture=lazy"),
    "hybrid": ("attention=hybrid", "pcg.capture=lazy", "attention@attention.prefill=triton"),
    "eagle3": ("spec=eagle3", "spec.load=dummy", "scheduler.chunk_tokens=40"),
    "ngram": ("spec=ngram", "scheduler.chunk_tokens=40"),
}


@pytest.fixture(scope="module")
def reference():
    return run(PROMPTS, GREEDY, *TINY, "overlap=none", "cache=none", "scheduler.max_running=1")


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_those_of_eager_prefill(path, reference):
    with make(*TINY, "pcg=piecewise", BUCKETS, *PATHS[path]) as llm:
        assert answers(llm.generate(PROMPTS, GREEDY)) == reference
        llm.check()
        assert llm.metrics.graph_prefills == llm.metrics.extend_steps > 0
        assert llm.metrics.eager_prefills == 0
