"""torch == triton == hybrid through the engine, on small shapes (Triton in its interpreter without a GPU)."""

from __future__ import annotations

import pytest
from support.drafters import Scripted, ScriptedTree
from support.engines import run

from engine.params import SamplingParams

SMALL = (
    "model=tiny",
    "model.dtype=float32",
    "model.layers=2",
    "model.heads=3",
    "model.kv_heads=1",
    "model.vocab=259",
    "threads=1",
    "device=cpu",
    "sampling.max_tokens=8",
)
PROMPTS = [[5], [7, 9, 11] * 6, [7, 9, 11] * 6 + [3], [(13 * i) % 251 for i in range(40)]]
BACKENDS = {
    "triton": ("attention=triton",),
    "prefill triton": (
        "attention=hybrid",
        "attention@attention.prefill=triton",
        "attention@attention.decode=torch",
    ),
    "decode triton": (
        "attention=hybrid",
        "attention@attention.prefill=torch",
        "attention@attention.decode=triton",
    ),
}
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=6, ignore_eos=True),
    "seeded": SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.8, seed=2),
}


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_backends_agree(backend: str, sampling: str, page: int) -> None:
    params, paging = SAMPLINGS[sampling], (f"cache.page_size={page}", "scheduler.chunk_tokens=24")
    reference = run(PROMPTS, params, *SMALL, "attention=torch", "overlap=none", "cache=none")
    assert run(PROMPTS, params, *SMALL, *BACKENDS[backend], *paging) == reference


@pytest.mark.parametrize("kind", [Scripted, ScriptedTree])
def test_triton_verifies_chains_and_trees(kind: type[Scripted]) -> None:
    params = SAMPLINGS["greedy"]
    plain = run(PROMPTS, params, *SMALL, "attention=torch", "overlap=none")
    known = {tuple(p): [*p, *ids] for p, (ids, _, _) in zip(PROMPTS, plain, strict=True)}
    drafter = kind(known, 259, drafts=2, script="random")
    assert run(PROMPTS, params, *SMALL, "attention=triton", parts={"speculator": drafter}) == plain
    assert max(drafter.accepted) > 0
