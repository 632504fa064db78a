"""The accept stage in Triton kernels equals the one in torch, through the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engines import answers, make
from support.sampled import Believer
from test_backends_agree import PROMPTS, SMALL

from engine.params import SamplingParams

LIKELY = range(40, 44)  # the tokens that come, so that drafts are accepted now and then
BELIEFS = torch.randn(259, 259, generator=torch.Generator().manual_seed(5)) * 0.3
BELIEFS[:, LIKELY.start : LIKELY.stop] += 20
WARM = SamplingParams(
    max_tokens=12,
    ignore_eos=True,
    temperature=1.0,
    top_p=0.95,
    seed=2,
    logprobs=1,
    logit_bias=dict.fromkeys(LIKELY, 20.0),
)
MIXED = [
    WARM,
    replace(WARM, temperature=0.0, frequency_penalty=1.0),
    replace(WARM, speculative=False),
    replace(WARM, repetition_penalty=1.5, min_tokens=4, stop_token_ids=(41,)),
]
KINDS = {
    "chain": {"drafts": 3},
    "tree": {"drafts": 2, "tree": True},
    "ratio": {"drafts": 3, "sampled": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_triton_accepts_what_torch_accepts(kind: str) -> None:
    outputs, accepted = [], []
    for attention in ("torch", "triton"):
        drafter = Believer(BELIEFS, **KINDS[kind])
        with make(*SMALL, f"attention={attention}", parts={"speculator": drafter}) as llm:
            found = llm.generate(PROMPTS, MIXED)
            llm.check()
        outputs.append(answers(found))
        accepted.append(drafter.accepted)
        for output in found:
            rows = output.completions[0].logprobs
            assert rows is not None
            assert [row.token for row in rows] == list(output.completions[0].token_ids)
    assert outputs[0] == outputs[1]
    assert accepted[0] == accepted[1]
    assert sum(accepted[0]) > 5
