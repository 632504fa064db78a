"""Four bits where the target has four bits, random drafts, and operations that may work in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_cases import CONFIG, HIDDEN, LAYERS, USUAL, VOCAB, Paged, tensors_of, toy_target, write
from torch import Tensor

from backends.torch_ops import TorchOps
from backends.torch_sdpa import TorchSDPA
from engine.errors import UserError
from engine.models.linear import DenseLinear, Int4Linear, PackedLinear
from engine.models.quantize import quantise_q4
from speculative.eagle3.checkpoint import load_draft
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.dummy import random_draft

LINEARS = ("fc", "qkv", "output", "gate_up", "down")
IDS = torch.arange(40) % VOCAB


def states(draft: Eagle3Draft) -> Tensor:
    width = HIDDEN * max(1, len(draft.aux_layers))
    return torch.randn((len(IDS), width), generator=torch.Generator().manual_seed(0)).to(draft.dtype)


def outputs(draft: Eagle3Draft) -> Tensor:
    """Of one pass over all tokens."""
    return Paged(draft, TorchSDPA, 16, 1).step([IDS], [draft.fuse(states(draft))])[0]


def loaded(folder: Path, weights: str, **changes: Any) -> Eagle3Draft:
    config = {**CONFIG, **changes}
    return load_draft(write(folder, config, tensors_of(config)), toy_target(weights))


def test_linears_are_int4_when_the_targets_are_and_the_head_is_not(tmp_path: Path) -> None:
    draft = loaded(tmp_path, "int4")
    assert draft.dtype == torch.bfloat16
    assert {name for name in LINEARS if isinstance(getattr(draft.weights, name), Int4Linear)} == set(LINEARS)
    assert isinstance(draft.weights.head, DenseLinear | PackedLinear)
    assert not isinstance(draft.weights.head, Int4Linear)


def test_a_matrix_that_does_not_fit_stays_in_bfloat16(tmp_path: Path) -> None:
    """down's inputs must come in groups of 32, gate_up's outputs in tiles of 16."""
    draft = loaded(tmp_path, "int4", intermediate_size=84)
    kinds = {name: isinstance(getattr(draft.weights, name), Int4Linear) for name in LINEARS}
    assert kinds == {"fc": True, "qkv": True, "output": True, "gate_up": False, "down": False}
    assert outputs(draft).isfinite().all()


@pytest.mark.parametrize("width", [1, 8, 40])
def test_int4_is_what_the_quantised_matrices_give(width: int, tmp_path: Path) -> None:
    """The same draft in fp32 over the dense form of the same blocks: only bfloat16 roundings differ."""
    tensors = tensors_of(CONFIG)
    dense = {
        n: quantise_q4(t).dense() if t.dim() == 2 and n != "lm_head.weight" else t for n, t in tensors.items()
    }
    exact = load_draft(write(tmp_path / "a", CONFIG, dense), toy_target())
    found = load_draft(write(tmp_path / "b", CONFIG, tensors), toy_target("int4"))
    results = []
    for draft in (exact, found):
        paged, hidden = Paged(draft, TorchSDPA, 16, 1), draft.fuse(states(draft))
        parts = zip(IDS.split(width), hidden.split(width), strict=True)
        results.append(draft.logits(torch.cat([paged.step([i], [h])[0] for i, h in parts])))
    assert (results[1] - results[0]).abs().mean() < 0.03 * results[0].std()


def test_int4_stays_near_fp32(tmp_path: Path) -> None:
    exact = loaded(tmp_path / "a", "float32")
    found = loaded(tmp_path / "b", "int4")
    expected = exact.logits(outputs(exact))
    error = (found.logits(outputs(found)) - expected).square().mean().sqrt()
    assert error < 0.2 * expected.std(), "about 0.07 a matrix, on random weights"


class InPlaceOps(TorchOps):
    """Overwrites its operands wherever the contract allows it."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x.copy_(super().rms_norm(x, weight, eps))

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual.add_(x)
        return x.copy_(super().rms_norm(residual, weight, eps)), residual


@pytest.mark.parametrize("changes", [{}, {"norm_output": True}, {"norm_before_residual": True}])
def test_operations_may_work_in_place(changes: dict[str, Any], tmp_path: Path) -> None:
    draft = loaded(tmp_path, "float32", **changes)
    expected = outputs(draft)
    given = states(draft)
    embedding = draft.weights.embed.clone()
    paged = Paged(draft, TorchSDPA, 16, 1)
    paged.attention.ops = InPlaceOps()
    found = paged.step([IDS], [draft.fuse(given)])[0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(given, states(draft)), "the target's states belong to the target"
    assert torch.equal(draft.weights.embed, embedding)
    kept = found.clone()
    draft.logits(found)
    draft.best(found)
    assert torch.equal(found, kept), "asking for tokens leaves the relayed state alone"


def test_bytes_are_those_of_the_matrices(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    matrices = sum(t.numel() for t in tensors.values() if t.dim() == 2)
    assert loaded(tmp_path, "float32").nbytes() == 4 * matrices


def test_random_drafts_follow_their_seed() -> None:
    first, again, other = (random_draft(toy_target(), seed) for seed in (1, 1, 2))
    assert torch.equal(outputs(first), outputs(again))
    assert not torch.equal(outputs(first), outputs(other))
    ids = first.target_ids(torch.arange(VOCAB // 4))
    assert torch.equal(ids, again.target_ids(torch.arange(VOCAB // 4)))
    assert (ids.diff() > 0).all()
    assert int(ids[-1]) < VOCAB
    assert first.logits(outputs(first)).std() > 0.3


def test_random_drafts_take_the_targets_sizes_unless_told() -> None:
    draft = random_draft(toy_target(), 0)
    assert (draft.aux_layers, draft.num_heads, draft.num_kv_heads, draft.head_dim) == (USUAL, 8, 8, 8)
    other = random_draft(
        toy_target(), 0, num_kv_heads=2, head_dim=16, num_heads=4, draft_vocab=VOCAB, norm_output=True
    )
    assert (other.num_heads, other.num_kv_heads, other.head_dim) == (4, 2, 16)
    assert other.logits(outputs(other)).shape == (40, VOCAB)
    assert other.shape.norm_output
    with pytest.raises(UserError, match="no size heads"):
        random_draft(toy_target(), 0, heads=4)


@pytest.mark.parametrize(("num_layers", "layers"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (LAYERS, USUAL)])
def test_random_drafts_fit_shallow_targets(num_layers: int, layers: tuple[int, ...]) -> None:
    draft = random_draft(toy_target(num_layers=num_layers), 0)
    assert draft.aux_layers == layers
    assert outputs(draft).isfinite().all()
