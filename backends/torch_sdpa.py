"""Attention in plain torch: gather the paged keys and values, mask by the device lengths, multiply.

The obvious reference on every device and dtype, and the CPU production path. Knows no page allocator and
reads no device value.

Legend: B requests, W width, K keys of the pass's window (W of them its own), G query heads a KV head,
L gathered positions, D head size.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.base import AttentionBackend, AttentionContext, AttentionSizes
from backends.fixed_places import FixedPlaces
from backends.torch_ops import TorchOps
from engine.batch import ForwardBatch, HostLens, LayerKV, Mode
from engine.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

# oneDNN compiles a kernel for each new shape (about 1 ms in bf16): lengths grow in these steps, not by one.
LENGTH_STEP = 32
# KV heads x positions below which the CPU's fused kernel is the faster one in bf16 (measured on two AVX-512
# cores: batched products cost 40 us whatever their size, the fused kernel follows the size).
SMALL_BF16 = 1024


@dataclass(frozen=True)
class _Verify:
    """index: [B * Hkv * L] rows of the pool flattened to [slots * Hkv, D], head-major; L: prefix, then the
    window. mask: [B * Hkv, W * G or 1, L], 0 where visible, -inf elsewhere."""

    index: Tensor
    mask: Tensor


@dataclass(frozen=True)
class _Prompt:
    """One request of an EXTEND pass: its tokens of T, and, given a prefix, its gather index and mask."""

    tokens: slice
    index: Tensor | None  # [Hkv * L], as in _Verify
    mask: Tensor | None  # [queries, L], 0 or -inf


class TorchSDPA(AttentionBackend):
    """Gathers up to the largest bound and masks by the device lengths. A token always sees itself, so that no
    row of a softmax is empty, not even that of an absent tree node."""

    host_lens = HostLens.BOUND  # the gathers are sized by the bounds
    tree_mask = True  # the mask is an operand, and a window of keys more of the gather index
    device_metadata = False  # its shapes follow the bounds: they change from step to step
    plans_outside = True  # index and mask have a place for each power of two of the length
    page_sizes = None  # slots are computed, any size will do
    dtypes = {  # noqa: RUF012
        "cpu": ("float32", "bfloat16", "float16"),
        "cuda": ("float32", "bfloat16", "float16"),
    }
    max_verify_width = 1 << 16  # the mask grows with the width, nothing else does

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Any, context: AttentionContext) -> None:
        self._context = context
        # Batched products beat the CPU's fused kernel up to threefold for few queries: that one works head by
        # head. Not in fp16, where a score can overflow before it is scaled and masked.
        self._fused = context.device.type != "cpu" or context.dtype == torch.float16
        self._torch_ops = TorchOps()
        self.ops = self._torch_ops
        self._verify: _Verify | None = None
        self._prompts: tuple[_Prompt, ...] = ()
        self._heads = torch.arange(context.num_kv_heads, device=context.device)
        self._in_page = torch.arange(context.page_size, device=context.device)
        self._places = FixedPlaces()

    @classmethod
    def workspace_bytes(cls, config: Any, sizes: AttentionSizes, children: Sequence[int]) -> int:
        """Keys and values of all rows, as long as the longest, of one layer; indices and masks beside them.
        Lengths that differ much are padded to more than the pool holds: this is the reference backend."""
        group = sizes.num_heads // sizes.num_kv_heads
        gathered = 2 * sizes.head_dim * sizes.element_size
        masked = sizes.max_width * group * sizes.element_size
        index = 3 * 8
        verify = sizes.max_rows * sizes.num_kv_heads * (gathered + masked + index)
        prompt = sizes.num_kv_heads * (gathered + index) + sizes.chunk * (sizes.element_size + 2)
        return sizes.max_context * max(verify, prompt)

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        self._torch_ops.new_pass()
        if batch.planned:
            return
        self._verify, self._prompts = None, ()
        if batch.mode is Mode.VERIFY and batch.size:
            steps = -(-_reach(batch) // LENGTH_STEP)
            self._verify = self._plan_verify(batch, steps * LENGTH_STEP)
        elif batch.mode is Mode.EXTEND:
            self._prompts = self._plan_extend(batch)

    def plan_graph(self, batch: ForwardBatch) -> Hashable:
        length = max(LENGTH_STEP, 1 << (_reach(batch) - 1).bit_length())
        plan, put = self._plan_verify(batch, length), self._places.put
        self._verify, self._prompts = _Verify(put("index", plan.index), put("mask", plan.mask)), ()
        return length

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        if self._verify is not None:
            return self._run_verify(self._verify, q, kv, batch.width)
        if batch.mode is Mode.EXTEND and batch.size:
            return _join([self._run_prompt(p, q, k, v, kv) for p in self._prompts])
        return q.flatten(1)

    # -- what to gather and what to hide, once a pass

    def _plan_verify(self, batch: ForwardBatch, length: int) -> _Verify:
        """length: positions to gather, the window's included."""
        size, width = batch.size, batch.width
        window = batch.slots.view(size, width) if batch.window_slots is None else batch.window_slots
        keys = window.shape[1]
        prefix = length - keys
        table = batch.page_table.index_select(0, batch.rows)
        slots, visible = self._prefix(table, batch.seq_lens.device, prefix)
        mask = slots.new_zeros((size, width, prefix + keys), dtype=self._context.dtype)
        mask[..., :prefix].masked_fill_(~visible.unsqueeze(1), float("-inf"))
        if keys > 1:
            mask[..., prefix:].masked_fill_(~_in_window(batch, keys), float("-inf"))
        return _Verify(self._by_head(torch.cat((slots, window), dim=1)), self._spread(mask))

    def _spread(self, mask: Tensor) -> Tensor:
        """[B, W, L] -> [B * Hkv, W * G, L], or [B * Hkv, 1, L] when W is 1."""
        size, width, length = mask.shape
        heads = len(self._heads)
        group = self._context.num_heads // heads if width > 1 else 1
        return (
            mask.view(size, 1, width, 1, length)
            .expand(-1, heads, -1, group, -1)
            .reshape(size * heads, -1, length)
        )

    def _plan_extend(self, batch: ForwardBatch) -> tuple[_Prompt, ...]:
        ends = itertools.accumulate(batch.query_lens)
        return tuple(
            self._plan_prompt(batch, i, slice(end - count, end))
            for i, (count, end) in enumerate(zip(batch.query_lens, ends, strict=True))
        )

    def _plan_prompt(self, batch: ForwardBatch, i: int, tokens: slice) -> _Prompt:
        bound, count = batch.seq_lens.bound[i], batch.query_lens[i]
        if bound == 0:  # an upper bound of zero is exact: no prefix, the pool need not be read
            return _Prompt(tokens, None, None)
        table = batch.page_table.index_select(0, batch.rows[i : i + 1])
        slots, visible = self._prefix(table, batch.seq_lens.device[i : i + 1], bound)
        causal = torch.ones((count, count), dtype=torch.bool, device=slots.device).tril_()
        seen = torch.cat((visible.expand(count, bound), causal), dim=1)
        mask = torch.zeros(seen.shape, dtype=self._context.dtype, device=seen.device)
        mask.masked_fill_(~seen, float("-inf"))  # additive: a bool mask is converted anew in every layer
        return _Prompt(
            tokens, self._by_head(torch.cat((slots, batch.slots[tokens].unsqueeze(0)), dim=1)), mask
        )

    def _prefix(self, table: Tensor, seq_lens: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """table [B, P] -> slots of positions 0..length-1 and whether they hold KV, both [B, length].

        Hidden positions point at the padding page, and so do those past the table's end.
        """
        page_size = self._context.page_size
        pages = table[:, : -(-length // page_size)].long()
        slots = (pages.unsqueeze(-1) * page_size + self._in_page).flatten(1)[:, :length]
        slots = torch.nn.functional.pad(slots, (0, length - slots.shape[1]))
        visible = torch.arange(length, device=table.device) < seq_lens.unsqueeze(1)
        return slots * visible, visible

    def _by_head(self, slots: Tensor) -> Tensor:
        """[B, L] -> [B * Hkv * L]: so that one gather yields each head's keys contiguously."""
        return (slots.unsqueeze(1) * len(self._heads) + self._heads.view(-1, 1)).flatten()

    # -- the arithmetic, once a layer

    def _run_verify(self, plan: _Verify, q: Tensor, kv: LayerKV, width: int) -> Tensor:
        streams, dim = plan.mask.shape[0], q.shape[2]  # a stream: one KV head of one request
        keys, values = self._gather(kv.k, plan.index, streams), self._gather(kv.v, plan.index, streams)
        if width == 1:
            return self._attend(q.reshape(streams, -1, dim), keys, values, plan.mask).reshape(q.shape[0], -1)
        heads = kv.k.shape[1]
        packed = q.view(-1, width, heads, q.shape[1] // heads, dim).transpose(1, 2)  # [B, Hkv, W, G, D]
        out = self._attend(packed.reshape(streams, -1, dim), keys, values, plan.mask)
        return out.reshape(packed.shape).transpose(1, 2).reshape(q.shape[0], -1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q [B * Hkv, W * G, D], k and v [B * Hkv, L, D] -> [B * Hkv, W * G, D]."""
        if self._fused or (q.dtype == torch.bfloat16 and k.shape[0] * k.shape[1] < SMALL_BF16):
            mask = mask.expand(-1, q.shape[1], -1)[None]
            fused = torch.nn.functional.scaled_dot_product_attention
            return fused(q[None], k[None], v[None], mask, scale=self._context.scale)[0]
        scores = torch.bmm(q, k.transpose(1, 2))
        torch.add(mask, scores, alpha=self._context.scale, out=scores)
        return torch.bmm(torch.softmax(scores, -1), v)

    def _gather(self, pool: Tensor, index: Tensor, streams: int) -> Tensor:
        """pool [slots, Hkv, D] -> [streams, L, D]."""
        dim = pool.shape[2]
        return pool.view(-1, dim).index_select(0, index).view(streams, -1, dim)

    def _run_prompt(self, plan: _Prompt, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV) -> Tensor:
        queries = q[plan.tokens].transpose(0, 1).unsqueeze(0)
        if plan.index is None:
            keys, values = (x[plan.tokens].transpose(0, 1) for x in (k, v))
        else:
            keys, values = (self._gather(pool, plan.index, pool.shape[1]) for pool in (kv.k, kv.v))
        out = torch.nn.functional.scaled_dot_product_attention(
            queries,
            keys.unsqueeze(0),
            values.unsqueeze(0),
            plan.mask,
            is_causal=plan.mask is None,
            scale=self._context.scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1).flatten(1)


def _reach(batch: ForwardBatch) -> int:
    """Positions that some token of a VERIFY pass may see."""
    window = batch.window_slots
    return batch.seq_lens.max_bound + (batch.width if window is None else window.shape[1])


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _in_window(batch: ForwardBatch, keys: int) -> Tensor:
    """Which new tokens see which keys of the window, whose last they are: bool [B, W, K] or [W, K]."""
    own = keys - batch.width
    causal = torch.ones((batch.width, keys), dtype=torch.bool, device=batch.slots.device).tril_(own)
    return causal if batch.tree_mask is None else batch.tree_mask | causal.triu_(own)
