"""The memory plan: what a configuration will hold, line by line, from shapes alone. Free of torch.

Knows sizes; the arithmetic of each part is in engine.footprints, the size of the KV pool in engine.pool_size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engine.footprints import (
    KERNEL_BYTES,
    Graphs,
    Passes,
    decode_bytes,
    kernels_of,
    kv_layout,
    parameters,
    prefill_bytes,
    prefill_graph_bytes,
    row_bytes,
    weight_bytes,
)
from engine.models.shape import ModelShape
from engine.sampling.limits import column_bytes
from speculative.base import DraftMemory


@dataclass(frozen=True)
class MemoryItem:
    """One line of the plan. how: the arithmetic in words. beside: it is made after the weights, and is not
    part of the KV pool, whose size depends on it. grows: with the slots of that pool."""

    name: str
    bytes: int
    how: str
    beside: bool = True
    grows: bool = False


@dataclass(frozen=True)
class MemoryPlan:
    """The items and their sum."""

    items: tuple[MemoryItem, ...]

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def beside(self) -> int:
        """What has to be free beside the KV pool, once the weights are there."""
        return sum(item.bytes for item in self.items if item.beside)

    @property
    def pools(self) -> int:
        """What grows with cache.tokens."""
        return sum(item.bytes for item in self.items if item.grows)

    def line(self) -> str:
        """The plan in one line."""
        return f"memory: {', '.join(f'{item.name} {human(item.bytes)}' for item in self.items)}"

    def as_dict(self) -> dict[str, Any]:
        """Bytes by name, with the arithmetic in words."""
        rows = [{"name": item.name, "bytes": item.bytes, "how": item.how} for item in self.items]
        return {"total_bytes": self.total, "items": rows}


@dataclass(frozen=True)
class PlanSizes:
    """What buffers are sized by. tokens: KV slots; context: longest request; columns: whether the rows carry
    penalty counts. scratch: KV slots a row beside the draft's pages. attention: bytes that backends work in.
    margin: bytes left alone, on a device that runs out of memory. at_least: the pool takes what is free,
    `tokens` at least."""

    tokens: int
    page_size: int
    context: int
    passes: Passes
    graphs: Graphs = field(default_factory=Graphs)
    columns: bool = True
    relay_bytes: int = 0
    draft_slots: int = 0
    scratch: int = 0
    attention: int = 0
    margin: int = 0
    at_least: bool = False

    @property
    def rows(self) -> int:
        """Of the request table; row 0 is padding."""
        return self.passes.running + 1

    @property
    def row_context(self) -> int:
        """Positions of a row: a late step writes past the longest request."""
        return self.context + 3 * self.passes.width + self.draft_slots


def memory_plan(
    shape: ModelShape, weights: str, compute: str, sizes: PlanSizes, draft: DraftMemory | None = None
) -> MemoryPlan:
    """weights: dtype of the weights ("int4" too); compute: dtype of activations and KV. draft: of a draft
    model beside the target."""
    slots = sizes.tokens + sizes.page_size
    per_token = kv_layout(shape, compute).bytes_per_token()
    items = (
        MemoryItem(
            "weights",
            weight_bytes(shape, weights),
            f"{parameters(shape):,} parameters in {weights}",
            beside=False,
        ),
        _pool_item("kv pool", slots * per_token, _pool_text(slots, per_token, compute, sizes)),
        *_row_items(shape, sizes),
        *_pass_items(shape, compute, sizes),
        *_graph_items(shape, compute, sizes),
    )
    drafts = () if draft is None else _draft_items(draft, sizes)
    margin = MemoryItem("margin", sizes.margin, "the driver, libraries, gaps between allocations")
    return MemoryPlan((*items, *drafts, *([margin] if sizes.margin else [])))


def _row_items(shape: ModelShape, sizes: PlanSizes) -> Iterable[MemoryItem]:
    rows, context = sizes.rows, sizes.row_context
    relay = f", {sizes.relay_bytes:,} bytes of relay each" if sizes.relay_bytes else ""
    taken = row_bytes(rows, context, sizes.page_size, sizes.relay_bytes)
    yield MemoryItem("rows", taken, f"{rows} rows of {context:,} positions{relay}")
    counts = f" with counts of {shape.vocab_size:,} tokens" if sizes.columns else ""
    taken = column_bytes(rows, shape.vocab_size, penalties=sizes.columns)
    yield MemoryItem("sampling columns", taken, f"{rows} rows{counts}")


def _pass_items(shape: ModelShape, compute: str, sizes: PlanSizes) -> Iterable[MemoryItem]:
    passes = sizes.passes
    needs = decode_bytes(shape, compute, passes), prefill_bytes(shape, compute, passes)
    logits = f"logits of {passes.running * passes.width} tokens"
    yield MemoryItem("workspace", max(needs), f"{logits}, or activations of {passes.chunk}")
    if sizes.attention:
        yield MemoryItem("attention workspace", sizes.attention, "what the attention backends work in")


def _graph_items(shape: ModelShape, compute: str, sizes: PlanSizes) -> Iterable[MemoryItem]:
    """Graphs keep intermediates in memory of their own, and the driver keeps a copy of every launch."""
    graphs, passes = sizes.graphs, sizes.passes
    decode, prefill = kernels_of(shape, graphs)
    each = f"kernels, some {human(KERNEL_BYTES)} each in the driver, and a workspace"
    if graphs.decode:
        taken = graphs.decode * decode * KERNEL_BYTES + decode_bytes(shape, compute, passes)
        yield MemoryItem("decode graphs", taken, f"{graphs.decode} of about {decode} {each}")
    if graphs.prefill:
        own = prefill_graph_bytes(shape, compute, passes, graphs)
        taken = graphs.prefill * graphs.lanes * prefill * KERNEL_BYTES + own
        yield MemoryItem(
            "prefill graphs", taken, f"{graphs.prefill * graphs.lanes} of about {prefill} {each}"
        )


def _draft_items(draft: DraftMemory, sizes: PlanSizes) -> Iterable[MemoryItem]:
    """What a draft model adds: its weights, and its KV under the target's pages."""
    slots, scratch = sizes.tokens + sizes.page_size, sizes.rows * sizes.scratch
    least = "at least " if sizes.at_least else ""
    shared = "its own matrices; what it shares with the target counts there"
    pool = f"{least}{slots:,} slots of {draft.kv_per_token:,} bytes"
    yield MemoryItem("draft weights", draft.weights, shared, beside=False)
    yield _pool_item("draft kv pool", slots * draft.kv_per_token, pool)
    if scratch:
        yield MemoryItem("draft scratch", scratch * draft.kv_per_token, f"{scratch:,} slots beside the pages")


def _pool_item(name: str, size: int, how: str) -> MemoryItem:
    return MemoryItem(name, size, how, beside=False, grows=True)


def _pool_text(slots: int, per_token: int, compute: str, sizes: PlanSizes) -> str:
    text = f"{slots:,} slots of {per_token:,} bytes in {compute}"
    return f"at least {text}; as many more as are free beside all else" if sizes.at_least else text


def human(size: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def plan_rows(plan: MemoryPlan) -> Iterable[tuple[str, str, str]]:
    """(name, size, how) of every line, the sum last."""
    yield from ((item.name, human(item.bytes), item.how) for item in plan.items)
    yield ("total", human(plan.total), "")
