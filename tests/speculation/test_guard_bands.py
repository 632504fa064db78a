# mypy: allow-untyped-calls, disable-error-code="arg-type"
"""No kernel of a step with drafts writes outside of its tensors: whole engines in Triton's interpreter, with
bands around all that is allocated. What compute-sanitizer does on a GPU; field reports L7 and L11.
"""

from __future__ import annotations

import os

import pytest
import torch
from support.engines import TINY, answers, make, run
from support.guard_bands import guarded

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.params import SamplingParams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="bands are for Triton's interpreter")
EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
DRAFTERS = {
    "ngram tree": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3", "spec.branches=2"),
    "eagle3 chain": EAGLE3,
    "eagle3 tree": (*EAGLE3, "spec.topk=4", "spec.num_steps=3", "spec.num_draft_tokens=16"),
}
SMALL = (*TINY, "model.layers=1", "cache.max_context=48", "sampling.max_tokens=6", "cache.tokens=480")
PROMPTS = [[5, 6, 7] * 3, [9], [5, 6] * 4, list(range(20, 37)), [7, 7, 7]]
PARAMS = [
    SamplingParams(max_tokens=6, ignore_eos=True),
    SamplingParams(max_tokens=5, ignore_eos=True, temperature=0.9, seed=3, top_p=0.9),
    SamplingParams(max_tokens=6, ignore_eos=True, logit_bias={5: 100.0}),
    SamplingParams(max_tokens=1, ignore_eos=True),
    SamplingParams(max_tokens=6, ignore_eos=True, frequency_penalty=0.5),
]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_five_requests_stay_inside_their_tensors(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 5 and fewer; drafts that are all wrong, and a loop whose drafts are right."""
    plain = run(PROMPTS, PARAMS, *SMALL, "overlap=none")
    with guarded(monkeypatch) as bands, make(*SMALL, "attention=triton", *DRAFTERS[drafter]) as llm:
        found = answers(llm.generate(PROMPTS, PARAMS))
        llm.check()
        counts = llm.metrics.snapshot()
    assert counts["drafted_tokens"] > counts["accepted_drafts"]
    assert found == plain
    assert bands.count > 100
    assert bands.broken() == []


def test_a_store_past_an_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the test above can fail: accept indices of [B, steps + 1], written as [B, drafts]."""
    import triton
    import triton.language as tl

    @triton.jit
    def fill(out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        at = tl.arange(0, BLOCK)
        tl.store(out + at, at, mask=at < count)

    with guarded(monkeypatch) as bands:
        index = torch.empty(5, 4, dtype=torch.int32)
        whole = torch.zeros(5, 16, dtype=torch.int32)
        fill[(1,)](whole, 80, BLOCK=128)
        assert bands.broken() == []
        fill[(1,)](index, 21, BLOCK=128)
    assert bands.broken() == ["torch.int32 [5, 4]"]
    assert index.flatten().tolist() == list(range(20))
