"""The step's operations on drafts as Triton kernels against the torch reference, integer for integer."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import ABSENT, ROOT, DraftTree, Finish, LayerKV
from speculative.ops import DraftOps, TorchDraftOps, draft_ops
from speculative.tree import chain

CUDA = torch.cuda.is_available()
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])
CPU = pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process"))
devices = pytest.mark.parametrize("device", [CPU, GPU])
widths = pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8, 11, 16])
STOPS = 3  # stop ids a row
VOCAB = 4  # few tokens: siblings repeat each other, drafts get accepted


def random_parents(width: int, rng: random.Random) -> list[int]:
    """Chains, bushes and mixtures; absent nodes, and now and then a node below one."""
    chained, absent = rng.random(), rng.choice([0.0, 0.2, 0.6])
    parents = [ROOT]
    for node in range(1, width):
        parent = node - 1 if rng.random() < chained else rng.randrange(node)
        parents.append(ABSENT if rng.random() < absent else parent)
    return parents


def random_tree(batch: int, width: int, device: str, seed: int) -> DraftTree:
    rng = random.Random(seed)
    parents = [random_parents(width, rng) for _ in range(batch)]
    tokens = [[rng.randrange(VOCAB) for _ in range(width)] for _ in range(batch)]
    to = {"dtype": torch.int32, "device": device}
    return DraftTree(
        torch.tensor(tokens, **to).view(batch, width), torch.tensor(parents, **to).view(batch, width)
    )


def tokens_of(batch: int, width: int, device: str, seed: int) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, width), generator=gen, dtype=torch.int32).to(device)


def random_ends(
    batch: int, width: int, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, SimpleNamespace]:
    """seq_lens, rows and columns: stop ids, least and largest length before, inside and after the run."""
    rng = random.Random(seed)
    table = batch + 3
    rows = [0 if rng.random() < 0.1 else r for r in rng.sample(range(1, table), batch)]
    lens = [rng.randrange(30) for _ in range(table)]
    stops = [rng.sample(range(VOCAB), rng.randrange(STOPS)) for _ in range(table)]
    least = [n + rng.randint(-2, width + 3) for n in lens]
    most = [n + rng.randint(1, width + 4) for n in lens]
    lens[0], stops[0], least[0], most[0] = 0, [], 0, 2**31 - 1
    to = {"dtype": torch.int32, "device": device}
    columns = SimpleNamespace(
        stop_ids=torch.tensor([s + [-1] * (STOPS - len(s)) for s in stops], **to),
        min_len=torch.tensor(least, **to),
        max_len=torch.tensor(most, **to),
    )
    at = torch.tensor(rows, dtype=torch.int64, device=device)
    return torch.tensor(lens, **to)[at], at, columns


def same_walk(ops: DraftOps, tree: DraftTree, target: torch.Tensor, ends: tuple) -> tuple:
    """Checks `accept_and_trim` against the reference; returns its values."""
    ours, theirs = (x.accept_and_trim(tree, target, *ends) for x in (ops, TorchDraftOps()))
    for name in ("accept_index", "n_accepted"):
        got, expected = getattr(ours[0], name), getattr(theirs[0], name)
        assert got.dtype == torch.int32
        assert torch.equal(got, expected), name
    valid = theirs[0].accept_index >= 0
    assert torch.equal(ours[0].emitted[valid], theirs[0].emitted[valid])
    assert bool(((ours[0].emitted >= 0) & (ours[0].emitted < VOCAB)).all())
    for got, expected in zip(ours[1:], theirs[1:], strict=True):
        assert got.dtype == torch.int32
        assert torch.equal(got, expected)
    return theirs


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
        taken, _, finish = same_walk(
            draft_ops("triton"), tree, target, random_ends(batch, width, device, seed + 200)
        )
        accepted |= set(taken.n_accepted.tolist())
        finishes |= set(finish.tolist())
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
    taken, *_ = same_walk(draft_ops("triton"), chain(wide[:, :5]), target[:, :5], ends)
    assert taken.n_accepted.tolist() == [right] * 2


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
        kept, finish = draft_ops("triton").trim(emitted, count, *ends)
        reference = TorchDraftOps().trim(emitted, count, *ends)
        assert (kept.item(), finish.item()) == (reference[0].item(), reference[1].item())
        early = at if ends[2].max_len[1] > known else 0
        wanted = (early + 1, expected) if early < run and expected else (run, Finish.NONE)
        assert (kept.item(), finish.item()) == wanted


@devices
@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("batch", [0, 1, 90])
def test_trim_alone(device: str, width: int, batch: int) -> None:
    rng = random.Random(width)
    emitted = tokens_of(batch, width + 2, device, seed=5)[:, :width]
    count = torch.tensor([rng.randint(1, width) for _ in range(batch)], dtype=torch.int32, device=device)
    ends = random_ends(batch, width, device, seed=6)
    for got, expected in zip(
        draft_ops("triton").trim(emitted, count, *ends),
        TorchDraftOps().trim(emitted, count, *ends),
        strict=True,
    ):
        assert got.dtype == torch.int32
        assert torch.equal(got, expected)


def layers_of(shapes: list[tuple[int, int]], slots: int, device: str, dtype: torch.dtype) -> list[LayerKV]:
    gen = torch.Generator().manual_seed(3)

    def side(heads: int, dim: int) -> torch.Tensor:
        return torch.randn(slots, heads, dim, generator=gen).to(device, dtype)

    return [LayerKV(i, side(*shape), side(*shape)) for i, shape in enumerate(shapes)]


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "width"), [(0, 4), (1, 1), (1, 2), (5, 7), (3, 16)])
@pytest.mark.parametrize("shapes", [[(3, 64)] * 3, [(1, 24), (1, 24), (2, 40)]], ids=["one", "two groups"])
def test_l6_compaction(
    device: str, dtype: torch.dtype, batch: int, width: int, shapes: list[tuple[int, int]]
) -> None:
    slots = torch.randperm(200)[: batch * width].view(batch, width).to(device)
    tree = random_tree(batch, width, device, seed=batch)
    ends = random_ends(batch, width, device, seed=1)
    index = TorchDraftOps().accept_and_trim(tree, tree.tokens.roll(-1, 1), *ends)[0].accept_index
    layers = [layers_of(shapes, 200, device, dtype) for _ in range(3)]
    TorchDraftOps().compactor(layers[0])(slots, index)
    draft_ops("triton").compactor(layers[1])(slots, index)
    for expected, got, old in zip(*layers, strict=True):
        for side in ("k", "v"):
            before, after = getattr(old, side), getattr(got, side)
            assert torch.equal(after, getattr(expected, side))
            for b in range(batch):
                for j, node in enumerate(index[b].tolist()):
                    source = slots[b, node if node >= 0 else j]
                    assert torch.equal(after[slots[b, j]], before[source])


@devices
def test_every_read_of_a_window_comes_before_its_writes(device: str) -> None:
    """Rotated windows: each slot is a source and a target."""
    slots = torch.randperm(64)[:32].view(2, 16).to(device)
    index = torch.arange(16, dtype=torch.int32, device=device).roll(5).expand(2, 16)
    layers = layers_of([(8, 128)] * 2, 64, device, torch.float32)
    before = [layer.k.clone() for layer in layers]
    draft_ops("triton").compactor(layers)(slots, index)
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer.k[slots], old[slots.roll(5, 1)])


def test_the_fact_of_a_backend_names_its_operations() -> None:
    from backends.torch_sdpa import TorchSDPA
    from backends.triton import TritonAttention

    assert isinstance(draft_ops(TorchSDPA.facts({}).step_kernels), TorchDraftOps)
    assert type(draft_ops(TritonAttention.facts({}).step_kernels)).__name__ == "TritonDraftOps"
    with pytest.raises(AssertionError, match="no draft operations are called cuda"):
        draft_ops("cuda")
