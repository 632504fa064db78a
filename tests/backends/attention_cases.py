"""Batches over a scattered paged pool, and attention over them in float64 loops: every backend's oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from backends.base import AttentionBackend, AttentionContext
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens

POISON = 1e4  # what unused slots hold: finite, and ruinous if it is ever read


@dataclass(frozen=True)
class Case:
    """One pass. lens: KV entries of each request before it; queries: new tokens; a row of None is padding.
    window: keys of a window that lies in scratch slots behind the pages, 0 for none."""

    mode: Mode = Mode.VERIFY
    lens: tuple[int | None, ...] = (5, 17, 0)
    queries: tuple[int, ...] = (1, 1, 1)
    page_size: int = 16
    heads: int = 6
    kv_heads: int = 2
    dim: int = 32
    slack: int = 3  # how far the bounds lie above the true lengths
    tree: bool = False
    window: int = 0
    max_context: int = 256
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0


@dataclass(frozen=True)
class World:
    """A case made concrete: the batch, its tensors and the pool after the new tokens were stored."""

    case: Case
    context: AttentionContext
    batch: ForwardBatch
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    kv: LayerKV


def verify(width: int, **changes: object) -> Case:
    case = replace(Case(), **changes)  # type: ignore[arg-type]
    return replace(case, queries=(width,) * len(case.lens))


def windowed(width: int, keys: int, **changes: object) -> Case:
    """A pass of tree drafting: `width` new tokens, the last of a window of `keys`."""
    return verify(width, window=keys, tree=True, **changes)


def extend(queries: tuple[int, ...], lens: tuple[int, ...], **changes: object) -> Case:
    return replace(Case(mode=Mode.EXTEND, queries=queries, lens=lens, slack=0), **changes)  # type: ignore[arg-type]


def build(case: Case) -> World:
    gen = torch.Generator().manual_seed(case.seed)
    context = context_of(case)
    columns = -(-(case.max_context + 3 * context.max_width) // case.page_size)
    rows = [0 if n is None else i + 1 for i, n in enumerate(case.lens)]
    pages = torch.randperm(len(case.lens) * columns, generator=gen).view(-1, columns) + 1
    table = torch.zeros((len(case.lens) + 1, columns), dtype=torch.int32)
    for row in rows:
        if row:
            table[row] = pages[row - 1].int()
    lens = [n or 0 for n in case.lens]
    total, paged = sum(case.queries), (len(case.lens) * columns + 1) * case.page_size
    shuffled = torch.randperm(len(case.lens) * case.window, generator=gen)
    window = paged + shuffled.view(len(case.lens), case.window)
    pool = [torch.full((paged + window.numel(), case.kv_heads, case.dim), POISON) for _ in "kv"]
    for row, n in zip(rows, lens, strict=True):
        written = slots_of(table[row], range(n), case.page_size)
        for side in pool:
            side[written] = torch.randn((n, case.kv_heads, case.dim), generator=gen)
    q = torch.randn((total, case.heads, case.dim), generator=gen)
    k, v = (torch.randn((total, case.kv_heads, case.dim), generator=gen) for _ in "kv")
    new = [
        slots_of(table[row], range(n, n + count), case.page_size)
        if row
        else torch.zeros(count, dtype=torch.int64)
        for row, n, count in zip(rows, lens, case.queries, strict=True)
    ]
    new_slots = torch.cat([*new, torch.zeros(0, dtype=torch.int64)])
    if case.window:
        new_slots = window[:, case.window - max(case.queries, default=0) :].reshape(-1)
        for side in pool:
            side[window] = torch.randn((*window.shape, case.kv_heads, case.dim), generator=gen)
    pool[0][new_slots], pool[1][new_slots] = k, v
    batch = _batch(case, rows, lens, new_slots, table, gen)
    if case.window:
        batch = _with_window(batch, window, pool, gen)
    to = {"device": case.device, "dtype": case.dtype}
    return World(
        case,
        context,
        batch,
        q.to(**to),
        k.to(**to),
        v.to(**to),
        LayerKV(0, pool[0].to(**to), pool[1].to(**to)),
    )


def context_of(case: Case) -> AttentionContext:
    width = case.queries[0] if case.mode is Mode.VERIFY and case.queries else 1
    return AttentionContext(
        role="target", num_heads=case.heads, num_kv_heads=case.kv_heads, head_dim=case.dim,
        scale=case.dim**-0.5, page_size=case.page_size, max_rows=len(case.lens) + 1, max_width=width,
        max_context=case.max_context, device=torch.device(case.device), dtype=case.dtype,
    )  # fmt: skip


def slots_of(row: torch.Tensor, positions: range, page_size: int) -> torch.Tensor:
    at = torch.tensor(list(positions), dtype=torch.int64)
    return row[at // page_size].long() * page_size + at % page_size


def _batch(
    case: Case,
    rows: list[int],
    lens: list[int],
    slots: torch.Tensor,
    table: torch.Tensor,
    gen: torch.Generator,
) -> ForwardBatch:
    counts = torch.tensor(case.queries, dtype=torch.int32)
    start = torch.zeros(len(lens) + 1, dtype=torch.int32)
    start[1:] = counts.cumsum(0)
    positions = [n + i for n, count in zip(lens, case.queries, strict=True) for i in range(count)]
    bound = tuple(0 if n is None else n + case.slack for n in case.lens)
    width = case.queries[0] if case.mode is Mode.VERIFY and case.queries else 0
    dev = case.device
    return ForwardBatch(
        mode=case.mode, rows=torch.tensor(rows, dtype=torch.int64, device=dev),
        input_ids=torch.zeros(len(slots), dtype=torch.int64, device=dev),
        positions=torch.tensor(positions, dtype=torch.int64, device=dev), slots=slots.to(dev),
        seq_lens=SeqLens(torch.tensor(lens, dtype=torch.int32, device=dev), bound),
        query_start=start.to(dev), query_lens=case.queries, page_table=table.to(dev), width=width,
        tree_mask=tree_mask(len(lens), width, gen).to(dev) if case.tree else None,
    )  # fmt: skip


def _with_window(
    batch: ForwardBatch, window: torch.Tensor, pool: list[torch.Tensor], gen: torch.Generator
) -> ForwardBatch:
    """The window's keys form random trees, the pass's tokens being the last nodes; what none of these sees is
    poisoned."""
    size, keys = window.shape
    mask = tree_mask(size, keys, gen)[:, keys - batch.width :]
    unseen = ~mask.any(1)
    unseen[:, keys - batch.width :] = False  # each token sees itself, whatever the mask says
    for side in pool:
        side[window[unseen]] = POISON
    dev = batch.slots.device
    return replace(batch, tree_mask=mask.to(dev), window_slots=window.to(dev))


def tree_mask(size: int, width: int, gen: torch.Generator) -> torch.Tensor:
    """Random trees, parents first; in each the last node is absent (its row is empty) when width > 2."""
    mask = torch.zeros((size, width, width), dtype=torch.bool)
    for b in range(size):
        for i in range(width):
            if i:
                mask[b, i] = mask[b, int(torch.randint(0, i, (1,), generator=gen))]
            mask[b, i, i] = True
        if width > 2:
            mask[b, width - 1] = False
    return mask


def reference(world: World) -> torch.Tensor:
    """[T, Hq * D] in float64, one query and one head at a time, straight from the contract."""
    case, batch = world.case, world.batch
    k_pool, v_pool = world.kv.k.double().cpu(), world.kv.v.double().cpu()
    q = world.q.double().cpu()
    out = torch.zeros((q.shape[0], case.heads, case.dim), dtype=torch.float64)
    start = batch.query_start.tolist()
    for b, n in enumerate(batch.seq_lens.device.tolist()):
        row = batch.page_table[int(batch.rows[b])].cpu()
        old = slots_of(row, range(n), case.page_size)
        window = batch.slots[start[b] : start[b + 1]] if not case.window else batch.window_slots[b]
        own = len(window) - case.queries[b]
        for i in range(case.queries[b]):
            seen = (
                list(range(i + 1))
                if batch.tree_mask is None
                else batch.tree_mask[b, i].nonzero().flatten().tolist()
            )
            slots = torch.cat((old, window.cpu()[sorted({*seen, own + i})]))
            keys, values = k_pool[slots], v_pool[slots]
            for h in range(case.heads):
                g = h // (case.heads // case.kv_heads)
                weights = (keys[:, g] @ q[start[b] + i, h] / math.sqrt(case.dim)).softmax(0)
                out[start[b] + i, h] = weights @ values[:, g]
    return out.flatten(1)


def run(backend: AttentionBackend, world: World) -> torch.Tensor:
    backend.init_forward_metadata(world.batch)
    out = backend.forward(world.q, world.k, world.v, world.kv, world.batch)
    assert out.dtype == world.q.dtype
    assert out.shape == (world.q.shape[0], world.case.heads * world.case.dim)
    return out


def close(out: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(out.double().cpu(), expected.double().cpu(), rtol=tolerance, atol=tolerance)
