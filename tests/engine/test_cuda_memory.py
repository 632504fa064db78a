"""A GPU whose memory is nearly used up: a full batch at the longest context runs in what was planned.

Field report K11.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.engines import make

from engine.errors import UserError
from engine.params import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
LEFT = 3 << 30  # bytes that the engine finds free
SHAPE = (
    "model=tiny", "model.dtype=bfloat16", "model.layers=16", "model.hidden=512", "model.heads=8",
    "model.kv_heads=8", "model.head_dim=64", "model.intermediate=1408", "model.vocab=32000",
    "attention=triton", "device=cuda", "scheduler.max_running=48", "cache.max_context=2048",
    "sampling.max_tokens=64",
)  # fmt: skip
MODES = {
    "eager": (),
    "graphs": ("graph=step", "pcg=piecewise"),
    "drafts": ("graph=step", "spec=eagle3", "spec.load=dummy", "spec.adaptive=false"),
}


OTHERS = 2 << 30  # bytes of a card that this process may not account for: its context, the driver


@pytest.fixture
def nearly_full() -> Iterator[None]:
    """Takes the card for itself: beside other programs it would fail, and starve them."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    if total - free - torch.cuda.memory_reserved() > OTHERS:
        pytest.skip("other programs use the card; run this file alone")
    filler = torch.empty(torch.cuda.mem_get_info()[0] - LEFT, dtype=torch.uint8, device="cuda")
    yield
    del filler
    torch.cuda.empty_cache()


@pytest.mark.usefixtures("nearly_full")
@pytest.mark.parametrize("mode", MODES)
def test_a_full_batch_at_the_longest_context(mode: str) -> None:
    """Every penalty and filter on; the pool is as large as can be, and requests take turns for it."""
    params = SamplingParams(
        max_tokens=64,
        ignore_eos=True,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        repetition_penalty=1.1,
        logprobs=5,
    )
    with make(*SHAPE, *MODES[mode]) as llm:
        planned = {item.name: item.bytes for item in llm.memory_plan.items}
        taken = sum(size for name, size in planned.items() if name not in ("weights", "draft weights"))
        assert LEFT // 2 < taken <= LEFT
        prompts = [[3 + (i + j) % 500 for j in range(1980)] for i in range(48)]
        outputs = llm.generate(prompts, [params] * 24 + [SamplingParams(max_tokens=64, ignore_eos=True)] * 24)
        assert all(len(o.completions[0].token_ids) == 64 for o in outputs)
        assert torch.cuda.mem_get_info()[0] > 0
        llm.check()


@pytest.mark.usefixtures("nearly_full")
def test_what_does_not_fit_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(UserError, match=r"cache\.tokens=4000000 does not fit: .* use cache\.tokens=\d+"):
        make(*SHAPE, "cache.tokens=4000000")


@pytest.mark.usefixtures("nearly_full")
def test_the_reserve_is_not_out_of_proportion() -> None:
    """What was set aside beside the pool, against what a full run really takes of it."""
    with make(*SHAPE) as llm:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        prompts = [[3 + (i + j) % 500 for j in range(1980)] for i in range(48)]
        llm.generate(prompts, SamplingParams(max_tokens=64, ignore_eos=True, temperature=0.8, top_p=0.9))
        used = torch.cuda.max_memory_allocated() - before
        planned = {item.name: item.bytes for item in llm.memory_plan.items}
    assert used <= planned["workspace"] + planned["margin"]
    assert used > planned["workspace"] / 20
