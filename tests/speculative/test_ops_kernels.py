"""The step's operations on drafts as Triton kernels against the torch reference, integer for integer."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace

import pytest
import torch
from tree_cases import VOCAB, devices, random_ends, random_tree, tokens_of, widths

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import DraftTree, Finish
from speculative.accept import Accepted, Settled
from speculative.ops import DraftOps, TorchDraftOps, draft_ops
from speculative.tree import chain


def same_walk(ops: DraftOps, tree: DraftTree, target: torch.Tensor, ends: tuple) -> Settled:
    """Checks `settle` against the reference; returns what that found."""
    ours, theirs = (x.settle(tree, target, *ends, None) for x in (ops, TorchDraftOps()))
    for name in ("accept_index", "n_accepted"):
        got, expected = getattr(ours.taken, name), getattr(theirs.taken, name)
        assert got.dtype == torch.int32
        assert torch.equal(got, expected), name
    valid = theirs.taken.accept_index >= 0
    assert torch.equal(ours.taken.emitted[valid], theirs.taken.emitted[valid])
    assert bool(((ours.taken.emitted >= 0) & (ours.taken.emitted < VOCAB)).all())
    same_ends(ours, theirs)
    return theirs


def same_ends(ours: Settled, theirs: Settled) -> None:
    for got, expected in ((ours.count, theirs.count), (ours.finish, theirs.finish)):
        assert got.dtype == expected.dtype == torch.int32
        assert torch.equal(got, expected)


def cut(ops: DraftOps, emitted: torch.Tensor, count: torch.Tensor, ends: tuple) -> Settled:
    """Runs of `count` tokens, wherever their drafts stood in a tree."""
    return ops.enter(Accepted(torch.zeros_like(emitted), count - 1, emitted), None, *ends, None)


@devices
@widths
@pytest.mark.parametrize("batch", [0, 1, 40])
def test_geometry_and_paths(device: str, width: int, batch: int) -> None:
    tree = random_tree(batch, width, device, seed=width)
    ours, theirs = (ops.geometry(tree) for ops in (draft_ops("triton"), TorchDraftOps()))
    assert ours.mask is not None
    for name in ("depth", "mask", "ancestors"):
        got, expected = getattr(ours, name), getattr(theirs, name)
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected), name


@devices
@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_the_shape_of_chains(device: str, width: int) -> None:
    tree = chain(tokens_of(3, width, device, seed=1))  # its parents are one row, expanded
    for needs_mask in (True, False):
        ours, theirs = (ops.geometry(tree, needs_mask) for ops in (draft_ops("triton"), TorchDraftOps()))
        assert torch.equal(ours.depth, theirs.depth)
        assert torch.equal(ours.ancestors, theirs.ancestors)
        assert (ours.mask is None) == (not needs_mask)


@devices
@widths
@pytest.mark.parametrize("batch", [0, 1, 150])
def test_walk_and_trim(device: str, width: int, batch: int) -> None:
    accepted, finishes = set(), set()
    for seed in range(3):
        tree = random_tree(batch, width, device, seed)
        target = tokens_of(batch, width, device, seed + 100)
        found = same_walk(draft_ops("triton"), tree, target, random_ends(batch, width, device, seed + 200))
        accepted |= set(found.taken.n_accepted.tolist())
        finishes |= set(found.finish.tolist())
    if batch > 1:  # the cases do cover what they are meant to
        assert finishes == {Finish.NONE, Finish.STOP, Finish.LENGTH}
        assert len(accepted) >= min(width, 3)


@devices
@pytest.mark.parametrize("right", range(5))
def test_a_chain_is_accepted_up_to_its_first_mistake(device: str, right: int) -> None:
    """With views into wider tensors: rows need not adjoin."""
    wide = torch.tensor([[7, 1, 2, 3, 0, 9, 9]] * 2, dtype=torch.int32, device=device)
    target = torch.tensor([[1, 2, 3, 0, 2, 9]] * 2, dtype=torch.int32, device=device)
    target[:, right] = 3 if right != 2 else 1
    ends = random_ends(2, 5, device, seed=right)
    found = same_walk(draft_ops("triton"), chain(wide[:, :5]), target[:, :5], ends)
    assert found.taken.n_accepted.tolist() == [right] * 2


def edges(device: str, *, stop: int, least: int, most: int) -> tuple:
    """Row 1 of a table whose only stop id is `stop`."""
    to = {"dtype": torch.int32, "device": device}
    columns = SimpleNamespace(
        stop_ids=torch.tensor([[-1], [stop]], **to),
        min_len=torch.tensor([0, least], **to),
        max_len=torch.tensor([9, most], **to),
    )
    return torch.tensor([9], **to), torch.tensor([1], device=device), columns


@devices
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("width", [1, 4, 6])
def test_e2_e4_p14_an_end_at_every_index(device: str, at: int, width: int) -> None:
    """A stop id, the least length and the largest length at index `at` of a run of 4 or 1, or past it."""
    run = min(width, 4)
    emitted = torch.zeros(1, width, dtype=torch.int32, device=device)
    if at < width:
        emitted[0, at] = 3
    count = torch.tensor([run], dtype=torch.int32, device=device)
    known = 10  # tokens before the run
    for ends, expected in (
        (edges(device, stop=3, least=0, most=99), Finish.STOP),
        (edges(device, stop=3, least=known + at, most=99), Finish.STOP),
        (edges(device, stop=3, least=known + at + 1, most=99), Finish.NONE),
        (edges(device, stop=3, least=0, most=known + at + 1), Finish.STOP),
        (edges(device, stop=2, least=0, most=known + at + 1), Finish.LENGTH),
        (edges(device, stop=2, least=0, most=known - 5), Finish.LENGTH),
    ):
        ours, theirs = (cut(ops, emitted, count, ends) for ops in (draft_ops("triton"), TorchDraftOps()))
        same_ends(ours, theirs)
        early = at if ends[2].max_len[1] > known else 0
        wanted = (early + 1, expected) if early < run and expected else (run, Finish.NONE)
        assert (ours.count.item(), ours.finish.item()) == wanted


@devices
@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("batch", [0, 1, 90])
def test_trim_alone(device: str, width: int, batch: int) -> None:
    rng = random.Random(width)
    emitted = tokens_of(batch, width + 2, device, seed=5)[:, :width]
    count = torch.tensor([rng.randint(1, width) for _ in range(batch)], dtype=torch.int32, device=device)
    ends = random_ends(batch, width, device, seed=6)
    ours, theirs = (cut(ops, emitted, count, ends) for ops in (draft_ops("triton"), TorchDraftOps()))
    same_ends(ours, theirs)


def test_the_fact_of_a_backend_names_its_operations() -> None:
    from backends.torch_sdpa import TorchSDPA
    from backends.triton import TritonAttention

    assert isinstance(draft_ops(TorchSDPA.facts({}).step_kernels), TorchDraftOps)
    assert type(draft_ops(TritonAttention.facts({}).step_kernels)).__name__ == "TritonDraftOps"
    with pytest.raises(AssertionError, match="no draft operations are called cuda"):
        draft_ops("cuda")
