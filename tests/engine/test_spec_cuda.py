"""The accept stage on a CUDA device: the same coins to the bit, and the same law with Triton's kernels."""

from __future__ import annotations

import pytest
import torch
from test_spec_engine_law import SAMPLINGS, engine, p_of

from engine.sampling.rng import PURPOSE_ACCEPT, PURPOSE_DRAFT, PURPOSE_RESIDUAL, PURPOSE_TOKEN, uniform

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("purpose", [PURPOSE_TOKEN, PURPOSE_DRAFT, PURPOSE_ACCEPT, PURPOSE_RESIDUAL])
def test_coins_are_those_of_the_cpu(purpose: int) -> None:
    generator = torch.Generator().manual_seed(purpose)
    keys = torch.randint(-(1 << 62), 1 << 62, (5000,), generator=generator)
    positions = torch.arange(5000)
    on_device = uniform(keys.cuda(), positions.cuda(), purpose).cpu()
    assert torch.equal(on_device, uniform(keys, positions, purpose))


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", ["chain", "tree", "ratio"])
def test_samples_follow_the_exact_distribution_on_cuda(kind: str, name: str) -> None:
    with engine(kind, name, "device=cuda", "attention=triton") as llm:
        assert p_of(llm, name) > 1e-3
        assert llm.metrics.snapshot()["accepted_drafts"] > 0
