"""Attention for graphs on the CPU, faster than Triton's interpreter: shapes follow from the table, not from
bounds. One kind builds its metadata on the device, the other plans on the host from exact lengths.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backends.base import AttentionBackend, AttentionContext
from backends.fixed_places import FixedPlaces
from backends.torch_ops import TorchOps
from backends.torch_sdpa import TorchSDPA
from engine import rules
from engine.batch import ForwardBatch, HostLens, LayerKV, Mode, SeqLens
from engine.compose import Resolved, compose
from engine.llm import LLM
from speculative.base import Speculator
from support.engines import TINY


class StaticAttention(AttentionBackend):
    """Verify passes look at every position that a row may hold; prefill is torch's."""

    host_lens = HostLens.BOUND
    tree_mask = True
    device_metadata = True
    page_sizes = None
    dtypes = {"cpu": ("float32",)}  # noqa: RUF012
    max_verify_width = 64

    @dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Any, context: AttentionContext) -> None:
        self._context = context
        self._prefill = TorchSDPA(TorchSDPA.Config(), context)
        self._own = TorchOps()
        self.ops = self._own
        self._slots: Tensor | None = None
        self._mask: Tensor | None = None

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        self._own.new_pass()
        if batch.mode is Mode.EXTEND:
            self._prefill.init_forward_metadata(batch)
        elif batch.size:
            self._slots, self._mask = self._look(batch)

    def _look(self, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """(slots [B, L], visible bool [B, W, L]): the whole row, then the window."""
        page, size = self._context.page_size, batch.size
        window = batch.slots.view(size, batch.width) if batch.window_slots is None else batch.window_slots
        at = torch.arange(batch.page_table.shape[1] * page)
        slots = batch.page_table[batch.rows][:, at // page].long() * page + at % page
        seen = (at < batch.seq_lens.device.unsqueeze(1)).unsqueeze(1).expand(-1, batch.width, -1)
        keys = window.shape[1]
        own = torch.ones(batch.width, keys, dtype=torch.bool).tril_(keys - batch.width)
        fresh = own.expand(size, -1, -1)
        if batch.tree_mask is not None:
            fresh = batch.tree_mask | own.triu(keys - batch.width)
        return torch.cat((slots, window), 1), torch.cat((seen, fresh), 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        if batch.mode is Mode.EXTEND:
            return self._prefill.forward(q, k, v, kv, batch)
        assert self._slots is not None
        assert self._mask is not None
        size, width, heads = batch.size, batch.width, kv.k.shape[1]
        keys, values = kv.k[self._slots], kv.v[self._slots]  # [B, L, Hkv, D]
        grouped = q.view(size, width, heads, -1, q.shape[2])
        scores = torch.einsum("bwhgd,blhd->bhwgl", grouped, keys) * self._context.scale
        scores = scores.masked_fill(~self._mask[:, None, :, None], float("-inf"))
        out = torch.einsum("bhwgl,blhd->bwhgd", scores.softmax(-1), values)
        return out.reshape(size * width, -1)


class HostPlanned(StaticAttention):
    """Plans from exact lengths on the host, as libraries do that want flat lists."""

    host_lens = HostLens.EXACT
    device_metadata = False
    plans_outside = True
    planned = 0  # passes, over all instances

    def __init__(self, config: Any, context: AttentionContext) -> None:
        super().__init__(config, context)
        self._places = FixedPlaces()

    def plan_graph(self, batch: ForwardBatch) -> Hashable:
        type(self).planned += 1
        lens = torch.tensor(batch.seq_lens.exact("HostPlanned"), dtype=torch.int32)
        exact = SeqLens(lens, batch.seq_lens.bound)
        changed = ForwardBatch(**{**vars_of(batch), "seq_lens": exact})
        slots, mask = self._look(changed)
        self._slots, self._mask = self._places.put("slots", slots), self._places.put("mask", mask)
        return None

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        if not batch.planned:
            if batch.mode is Mode.VERIFY and batch.size:
                batch.seq_lens.exact("HostPlanned")
            return super().init_forward_metadata(batch)
        return self._own.new_pass()


def vars_of(batch: ForwardBatch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in batch.__dataclass_fields__}


# Classes of our packages only can be named in a config: these stand in as one of them.
for _class in (StaticAttention, HostPlanned):
    _class.__module__ = "engine.static_attention"
sys.modules["engine.static_attention"] = sys.modules[__name__]


def static_engine(
    *overrides: str, attention: str = "StaticAttention", parts: Mapping[str, object] | None = None
) -> LLM:
    """model=tiny over one of the classes above, the draft's attention too; judged by the rules."""
    resolved = static_config(*overrides, attention=attention)
    rules.check(resolved)
    drafter = (parts or {}).get("speculator")
    if isinstance(drafter, Speculator):
        parts = {"plan": drafter.plan, **(parts or {})}
    return LLM.from_config(resolved.cfg, parts=parts)


def static_config(*overrides: str, attention: str = "StaticAttention") -> Resolved:
    """The same, composed."""
    resolved = compose((*TINY, "device=cpu", "attention=torch", *overrides))
    home = "backends.torch_sdpa" if attention == "TorchSDPA" else "engine.static_attention"
    node = {"_target_": f"{home}.{attention}"}
    spec = dict(resolved.cfg["spec"])
    if "draft_attention" in spec:
        spec["draft_attention"] = node
    cfg = {**resolved.cfg, "attention": node, "spec": spec}
    return Resolved(cfg, resolved.overrides, resolved.choices)


def ids(llm: LLM, prompts: Sequence[Sequence[int]], params: Any) -> list[tuple[int, ...]]:
    """Token ids of every sample; the engine's accounting is checked."""
    outputs = llm.generate(prompts, params)
    llm.check()
    return [c.token_ids for o in outputs for c in o.completions]
