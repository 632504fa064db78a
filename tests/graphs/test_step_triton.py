"""`graph=step` over Triton's interpreter: the kernels too are replayed, and change no answer."""

from __future__ import annotations

import pytest
from graph_cases import VOCAB, same
from support.device_drafters import Follower, follow_table
from support.engines import TINY, make

from engine.answers import Completion
from engine.llm import LLM
from engine.params import SamplingParams

SMALL = (*TINY, "model.layers=1", "attention=triton", "cache.max_context=48", "sampling.max_tokens=8")
GRAPH = ("graph=step", "graph.sizes=[1,4]", "overlap.debug=true")
PROMPTS = [[7, 8, 9], [5] * 9, [200, 3]]
WANTED = [
    SamplingParams(max_tokens=8, ignore_eos=True),
    SamplingParams(max_tokens=4, ignore_eos=True),
    SamplingParams(max_tokens=7, ignore_eos=True),
]


def answers(llm: LLM) -> tuple[Completion, ...]:
    outputs = llm.generate(PROMPTS, WANTED)
    llm.check()
    return tuple(output.completions[0] for output in outputs)


@pytest.fixture(scope="module")
def eager() -> tuple[Completion, ...]:
    with make(*SMALL, "overlap=none") as llm:
        return answers(llm)


@pytest.mark.parametrize("drafter", ["none", "tree"])
def test_ids_are_those_of_eager_steps(drafter: str, eager: tuple[Completion, ...]) -> None:
    """A tree takes the kernels that derive its shape, walk it and compact its KV into the graph."""
    table = follow_table(PROMPTS, [sample.token_ids for sample in eager], VOCAB)
    parts = {"speculator": Follower(table, drafts=2, tree=True)} if drafter == "tree" else None
    with make(*SMALL, *GRAPH, parts=parts) as llm:
        same(answers(llm), eager)
        assert llm.metrics.decode_steps > 0
        assert llm.metrics.eager_decode_steps == 0
        assert (llm.metrics.accepted_drafts > 2) == (drafter == "tree")
