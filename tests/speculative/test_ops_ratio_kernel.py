"""The ratio test's two implementations at its edges, and the kernel against the reference."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from ratio_cases import VOCAB, case, joint_counts, moved, p_value, tables
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import DraftTree
from speculative.ops import TorchDraftOps, draft_ops
from speculative.tree import chain

CUDA = torch.cuda.is_available()
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])
CPU = pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process"))
KERNEL = pytest.mark.parametrize("device", [CPU, GPU])


def one_draft(
    p: list[float], q: list[float], draft: int, accept: float, draw: float
) -> tuple[DraftTree, Tensor, ...]:
    tree = replace(chain(torch.tensor([[0, draft]]).int()), probs=torch.tensor([[q]]))
    flat = torch.full((1, len(p)), 1 / len(p))
    second = torch.tensor([p])
    to_coins = (torch.full((1, 2), value, dtype=torch.float64) for value in (accept, draw))
    return tree, torch.stack((second, flat), dim=1), *to_coins


P, Q = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]
EDGES = {
    "p6: the residual holds one token": (P, Q, 1, 0.61, 0.999, [0]),
    "just kept": (P, Q, 1, 0.59, 0.01, [1, 0]),
    "p above q is always kept": (P, Q, 0, 0.999999, 0.5, [0, 1]),
    "a draft that q excludes": ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5], 0, 0.01, 0.3, [0]),
    "a draft that p excludes": ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5], 2, 1e-12, 0.3, [0]),
    "an empty residual draws from p": ([0.0, 1.0, 0.0], [0.0, 1.0, 0.0], 0, 0.5, 0.9, [1]),
    "one-hot p, right draft": ([0.0, 0.0, 1.0], [0.3, 0.3, 0.4], 2, 0.999, 0.5, [2, 1]),
    "one-hot p, wrong draft": ([0.0, 0.0, 1.0], [0.3, 0.3, 0.4], 1, 1e-12, 0.001, [2]),
    "a coin on an edge points behind it": ([0.5, 0.0, 0.5], [0.0, 1.0, 0.0], 1, 0.5, 0.5, [2]),
    "a coin past the last edge": ([0.25, 0.75, 0.0], [0.0, 0.0, 1.0], 2, 0.5, 1.0, [1]),
    "the lowest coin takes no token of weight zero": ([0.0, 0.6, 0.4], [0.0, 0.0, 1.0], 2, 0.9, 1e-16, [1]),
}


@KERNEL
@pytest.mark.parametrize("ops", ["torch", "triton"])
@pytest.mark.parametrize("name", EDGES)
def test_edges(device: str, ops: str, name: str) -> None:
    *values, expected = EDGES[name]
    tree, *rest = one_draft(*values)
    got = draft_ops(ops).accept_ratio(moved(tree, device), *(x.to(device) for x in rest))
    assert got.emitted[0, : len(expected)].tolist() == expected
    assert got.n_accepted.tolist() == [len(expected) - 1]


@KERNEL
@pytest.mark.parametrize("batch", [0, 1, 40])
@pytest.mark.parametrize(("width", "vocab"), [(1, 5), (2, VOCAB), (4, 1000), (7, 64), (16, 33)])
def test_the_kernel_equals_the_reference(device: str, batch: int, width: int, vocab: int) -> None:
    same(device, batch, width, vocab)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize("vocab", [4096, 4097, 49_152, 151_936])
def test_gpu_large_vocabularies(vocab: int) -> None:
    same("cuda", 24, 5, vocab)


def same(device: str, batch: int, width: int, vocab: int) -> None:
    tree, *rest = case(batch, width, vocab, seed=vocab)
    expected = TorchDraftOps().accept_ratio(tree, *rest)
    got = draft_ops("triton").accept_ratio(moved(tree, device), *(x.to(device) for x in rest))
    for name in ("accept_index", "n_accepted", "emitted"):
        assert getattr(got, name).dtype == torch.int32
        assert torch.equal(getattr(got, name).cpu(), getattr(expected, name)), name


@KERNEL
def test_many_blocks_of_the_vocabulary(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels import accept_ratio as module

    monkeypatch.setattr(module, "INTERPRETED_TILE", 16)
    monkeypatch.setattr(module, "_GPU_BLOCK", 16)
    same(device, 30, 4, 100)


@KERNEL
def test_slices_of_wider_tensors(device: str) -> None:
    """A batch's probabilities may come as views: only the last axis must be contiguous."""
    tree, p, accept, draw = case(6, 4, VOCAB, seed=2)
    assert tree.probs is not None
    expected = TorchDraftOps().accept_ratio(tree, p, accept, draw)
    wide = [
        torch.nn.functional.pad(x, (0, 3)).to(device)[..., : x.shape[-1]]
        for x in (p, tree.probs, accept, draw)
    ]
    view = DraftTree(tree.tokens.to(device), tree.parent.to(device), probs=wide[1])
    got = draft_ops("triton").accept_ratio(view, wide[0], wide[2], wide[3])
    assert torch.equal(got.emitted.cpu(), expected.emitted)
    assert torch.equal(got.n_accepted.cpu(), expected.n_accepted)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="no CUDA device")
@pytest.mark.parametrize(("temperature", "cut"), [(0.3, 0.0), (1.0, 0.0), (1.5, 0.0), (1.0, 0.08)])
def test_gpu_three_tokens_follow_the_exact_joint_distribution(temperature: float, cut: float) -> None:
    p, q = tables(temperature, cut)
    assert p_value(joint_counts(draft_ops("triton").accept_ratio, p, q, 200_000, "cuda"), p) > 1e-3
