"""The memory plan: what a configuration will hold, in bytes, from shapes alone. Free of torch.

Knows sizes and nothing of who allocates them. Weights are an estimate within a few percent (packing of
quantised blocks differs by tensor) and so is the workspace; pool, rows and columns are exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.batch import KVGroup, KVLayout
from engine.models.shape import ModelShape
from engine.sampling.limits import column_bytes
from engine.scheduling.reservation import Reservation
from speculative.base import DraftMemory

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8, "bool": 1}
INT4_BYTES = 0.5 + 4 / 32  # half a byte a weight, and a bfloat16 scale and zero for every 32
CPU_POOL_BYTES = 256 << 20  # automatic KV pool on a CPU, which shares its memory with everything else
CPU_POOL_TOKENS = 65536
KERNEL_BYTES = 64 << 10  # of a captured launch: a rule of thumb; a run's result says what its graphs took
LAYER_KERNELS, STEP_KERNELS, DRAFT_KERNELS = 12, 60, 30  # in a decode step: a layer, the rest, a draft's pass
GPU_SHARE = 0.85  # of the free device memory after the weights; the rest is workspace


@dataclass(frozen=True)
class MemoryItem:
    """One line of the plan. how: the arithmetic in words."""

    name: str
    bytes: int
    how: str


@dataclass(frozen=True)
class MemoryPlan:
    """The items and their sum."""

    items: tuple[MemoryItem, ...]

    @property
    def total(self) -> int:
        return sum(item.bytes for item in self.items)


@dataclass(frozen=True)
class PlanSizes:
    """What buffers are sized by. tokens: KV slots; context: longest request; width: drafts + 1; chunk: tokens
    of the largest prefill pass; columns: whether the rows carry penalty counts."""

    tokens: int
    page_size: int
    context: int
    max_running: int
    chunk: int
    width: int = 1
    columns: bool = True
    relay_bytes: int = 0  # a row
    at_least: bool = False  # the pool takes what is free, `tokens` at least
    draft_slots: int = 0  # positions that a chain drafts ahead
    scratch: int = 0  # KV slots a row beside the draft's pages
    graphs: int = 0  # decode graphs captured at start
    draft_passes: int = 0  # of a draft model in a decode step


def memory_plan(
    shape: ModelShape, weights: str, compute: str, sizes: PlanSizes, draft: DraftMemory | None = None
) -> MemoryPlan:
    """weights: dtype of the weights ("int4" too); compute: dtype of activations and KV. draft: of a draft
    model beside the target."""
    slots = sizes.tokens + sizes.page_size
    per_token = kv_layout(shape, compute).bytes_per_token()
    rows, context = sizes.max_running + 1, sizes.context + 3 * sizes.width + sizes.draft_slots
    items: tuple[MemoryItem, ...] = (
        MemoryItem("weights", weight_bytes(shape, weights), f"{parameters(shape):,} parameters in {weights}"),
        MemoryItem("kv pool", slots * per_token, _pool_text(slots, per_token, compute, sizes)),
        MemoryItem("rows", row_bytes(rows, context, sizes), _rows_text(rows, context, sizes)),
        MemoryItem(
            "sampling columns",
            column_bytes(rows, shape.vocab_size, penalties=sizes.columns),
            f"{rows} rows" + (f" with counts of {shape.vocab_size:,} tokens" if sizes.columns else ""),
        ),
        MemoryItem(
            "workspace",
            workspace_bytes(shape, compute, sizes),
            f"logits of {sizes.max_running * sizes.width} tokens, activations of {sizes.chunk}",
        ),
    )
    items += graph_items(shape, sizes)
    return MemoryPlan(items if draft is None else items + draft_items(draft, sizes))


def graph_items(shape: ModelShape, sizes: PlanSizes) -> tuple[MemoryItem, ...]:
    """What decode graphs add. Their tensors are the workspace's; the driver keeps a copy of every launch."""
    if not sizes.graphs:
        return ()
    kernels = shape.num_layers * LAYER_KERNELS + STEP_KERNELS + sizes.draft_passes * DRAFT_KERNELS
    text = f"{sizes.graphs} of about {kernels} kernels, some {human(KERNEL_BYTES)} each in the driver"
    return (MemoryItem("decode graphs", sizes.graphs * kernels * KERNEL_BYTES, text),)


def draft_items(draft: DraftMemory, sizes: PlanSizes) -> tuple[MemoryItem, ...]:
    """What a draft model adds: its weights, and its KV under the target's pages."""
    rows = sizes.max_running + 1
    slots = sizes.tokens + sizes.page_size + rows * sizes.scratch
    beside = f", {rows * sizes.scratch:,} of them beside the pages" if sizes.scratch else ""
    pool = f"{'at least ' if sizes.at_least else ''}{slots:,} slots of {draft.kv_per_token:,} bytes{beside}"
    return (
        MemoryItem(
            "draft weights", draft.weights, "its own matrices; what it shares with the target counts there"
        ),
        MemoryItem("draft kv pool", slots * draft.kv_per_token, pool),
    )


def _pool_text(slots: int, per_token: int, compute: str, sizes: PlanSizes) -> str:
    text = f"{slots:,} slots of {per_token:,} bytes in {compute}"
    return f"at least {text}; {GPU_SHARE:.0%} of what is free after the weights" if sizes.at_least else text


def _rows_text(rows: int, context: int, sizes: PlanSizes) -> str:
    relay = f", {sizes.relay_bytes:,} bytes of relay each" if sizes.relay_bytes else ""
    return f"{rows} rows of {context:,} positions{relay}"


def kv_layout(shape: ModelShape, compute: str) -> KVLayout:
    """What a decoder of this shape keeps per token."""
    return KVLayout((KVGroup(shape.num_layers, shape.num_kv_heads, shape.head_dim),), compute)


def parameters(shape: ModelShape) -> int:
    """All weights; a tied head counts once."""
    return _embedding(shape) * (1 if shape.tied else 2) + _layers(shape) + shape.hidden_size


def weight_bytes(shape: ModelShape, dtype: str) -> int:
    """int4 packs the layers' matrices; embedding, head and norms stay in bfloat16."""
    if dtype != "int4":
        return parameters(shape) * BYTES[dtype]
    rest = parameters(shape) - _layers(shape)
    return int(_layers(shape) * INT4_BYTES) + rest * BYTES["bfloat16"]


def row_bytes(rows: int, context: int, sizes: PlanSizes) -> int:
    """Tokens, lengths, page table and what a drafter relays."""
    pages = -(-context // sizes.page_size)
    return rows * ((context + 1 + pages) * BYTES["int32"] + sizes.relay_bytes)


def workspace_bytes(shape: ModelShape, compute: str, sizes: PlanSizes) -> int:
    """The widest intermediate of a pass; fp32 logits of a full decode batch, with a copy for filters."""
    widest = max(shape.hidden_size + shape.q_size + 2 * shape.kv_size, 3 * shape.intermediate_size)
    tokens = max(sizes.chunk, sizes.max_running * sizes.width)
    logits = sizes.max_running * sizes.width * shape.vocab_size * BYTES["float32"]
    return tokens * widest * BYTES[compute] + 2 * logits


def auto_context(max_context: int | str, longest: int) -> int:
    """ "auto": what the model was made for."""
    return longest if max_context == "auto" else min(int(max_context), longest)


def longest_owned(context: int, page_size: int, width: int, draft_slots: int) -> int:
    """KV slots that a request of `context` tokens may come to own, in whole pages: more than it has tokens,
    since a step with drafts writes ahead of what will be accepted."""
    most = max(context, Reservation(width, draft_slots).worst(context))
    return -(-most // page_size) * page_size


def auto_tokens(context: int, max_running: int, per_token: int, free_bytes: int | None) -> int:
    """Tokens of an automatic KV pool: one full context at least, every row's context at most.

    context: what the longest request owns, as from `longest_owned`. free_bytes: free device memory once the
    weights are there; None on a CPU, where the pool stays small.
    """
    wanted = context * max_running
    if free_bytes is None:
        return min(wanted, max(context, min(CPU_POOL_BYTES // per_token, CPU_POOL_TOKENS)))
    return min(wanted, int(free_bytes * GPU_SHARE) // per_token)


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


def _embedding(shape: ModelShape) -> int:
    return shape.vocab_size * shape.hidden_size


def _layers(shape: ModelShape) -> int:
    attention = shape.hidden_size * (2 * shape.q_size + 2 * shape.kv_size)
    biases = (shape.q_size + 2 * shape.kv_size) if shape.qkv_bias else 0
    biases += shape.hidden_size if shape.o_bias else 0
    norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)
    return shape.num_layers * (attention + biases + norms + 3 * shape.hidden_size * shape.intermediate_size)
