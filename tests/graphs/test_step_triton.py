"""`graph=step` over Triton's interpreter: the graph's ids are those of eager steps."""

from __future__ import annotations

import pytest
from support.engines import TINY, make, run

from engine.params import SamplingParams

SMALL = (
    *TINY,
    "model.layers=1",
    "attention=triton",
    "cache.max_context=48",
    "sampling.max_tokens=6",
)
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
PROMPTS = [[7, 8, 9], [5] * 9, [200, 3]]


@pytest.mark.parametrize("loop", ["none", "future"])
def test_greedy_ids_are_those_of_eager_steps(loop: str) -> None:
    eager = run(PROMPTS, GREEDY, *SMALL, f"overlap={loop}")
    with make(*SMALL, f"overlap={loop}", "overlap.debug=true", "graph=step", "graph.sizes=[1,4]") as llm:
        outputs = llm.generate(PROMPTS, GREEDY)
        llm.check()
        assert llm.metrics.decode_steps > 0
        assert llm.metrics.eager_decode_steps == 0
    assert [c.token_ids for o in outputs for c in o.completions] == [ids for ids, _, _ in eager]
