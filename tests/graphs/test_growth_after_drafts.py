"""A batch larger than any captured size, right after n-gram steps that accepted several tokens."""

from __future__ import annotations

import pytest
from support.engines import TINY, answers, run
from support.static_attention import static_engine

from engine.params import SamplingParams

LOOP = SamplingParams(max_tokens=25, ignore_eos=True, logit_bias={65: 100.0})
FREE = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("branches", [1, 2])
def test_ngram_outgrows_every_captured_size(branches: int, loop: str) -> None:
    """G2: two requests loop and are accepted at full length, then more join, a chunk each step."""
    prompts = [[65] * 6, [65, 65, 7]] + [[3 * i + 1, 7, i, 9, 3 * i + 1, 7, i, 9] for i in range(10)]
    params = [LOOP, LOOP] + [FREE] * 10
    spec = ("spec=ngram", "spec.adaptive=false", "spec.drafts=3", f"spec.branches={branches}")
    sizes = ("graph=step", "graph.sizes=[1,2]", "scheduler.chunk_tokens=16", "scheduler.max_running=12")
    with static_engine(*spec, *sizes, f"overlap={loop}") as llm:
        found = answers(llm.generate(prompts, params))
        metrics = llm.metrics
        llm.check()
        assert metrics.snapshot()["accepted_drafts"] > 30
        assert metrics.snapshot()["peak_running"] > 2
        assert 0 < metrics.eager_decode_steps < metrics.decode_steps, "some steps fit, some do not"
    assert found == run(prompts, params, *TINY, "device=cpu", "overlap=none")
