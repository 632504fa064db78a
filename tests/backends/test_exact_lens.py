"""Forced host lengths: the same answers as the child's, a host mirror, a wait a step, and no step graph."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from backends.exact_lens import ExactLens
from engine import LLM, SamplingParams
from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.metrics import difference

TINY = ("model=tiny", "model.dtype=float32", "threads=1", "cache=none")
FORCED = ("attention=exact_lens",)
PROMPTS = [[5, 6, 7], [8, 9], [11, 12, 13, 14, 15]]


def run(*overrides: str) -> tuple[list[Sequence[int]], float]:
    """(ids, host waits)."""
    with LLM(*TINY, *overrides) as llm:
        before = llm.metrics.snapshot()
        outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=24, ignore_eos=True))
        waits = difference(before, llm.metrics.snapshot())["host_waits"]
        return [output.completions[0].token_ids for output in outputs], waits


@pytest.mark.parametrize("spec", ["none", "ngram", "eagle3"])
def test_same_ids_and_a_wait_a_step(spec: str) -> None:
    draft = ("spec.load=dummy",) if spec == "eagle3" else ()
    plain, free = run(f"spec={spec}", *draft)
    forced, waited = run(f"spec={spec}", *draft, *FORCED)
    assert forced == plain
    assert waited >= free + 10  # two steps may share a prefill's wait; every decode step has its own


def test_explain_names_the_cause() -> None:
    told = explain(compose([*TINY, *FORCED]))
    assert told.needs_cpu_seq_lens
    assert told.caused_by == ("target attention (ExactLens)",)
    assert not explain(compose(TINY)).needs_cpu_seq_lens


def test_no_step_graph_gives_exact_lengths() -> None:
    told = explain(compose([*TINY, *FORCED, "attention@attention.inner=triton", "graph=step"]))
    assert not told.accepted


def test_it_wraps_one_backend() -> None:
    with pytest.raises(UserError, match=r"wraps one backend, inner, but was given nothing"):
        ExactLens.facts({})
