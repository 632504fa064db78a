"""An automatic pool holds the longest request that the context allows, whatever a step writes ahead."""

from __future__ import annotations

import pytest
from support.engines import TINY, answers, make, run

from engine.params import SamplingParams

CONTEXT = 60
PROMPTS = [[72, 101, 108, 72, 101]]
PARAMS = SamplingParams(max_tokens=CONTEXT - len(PROMPTS[0]), ignore_eos=True)
SIZES = (f"cache.max_context={CONTEXT}", "scheduler.max_running=1", "sampling.max_tokens=2")


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(
    "drafts",
    [
        ("spec=none",),
        ("spec=ngram", "spec.adaptive=false"),
        ("spec=ngram", "spec.adaptive=false", "spec.drafts=63"),
        (
            "spec=eagle3",
            "spec.load=dummy",
            "spec.adaptive=false",
            "spec.num_steps=9",
            "spec.num_draft_tokens=10",
        ),
    ],
)
def test_a_request_up_to_the_end_of_the_context(drafts: tuple[str, ...], page_size: int) -> None:
    plain = run(PROMPTS, PARAMS, *TINY, "overlap=none")
    with make(*TINY, *SIZES, *drafts, f"cache.page_size={page_size}", "overlap.debug=true") as llm:
        assert answers(llm.generate(PROMPTS, PARAMS)) == plain
        llm.check()
