"""What parts of an engine take, in bytes, from shapes alone. Free of torch.

Weights are an estimate within a few percent (packing of quantised blocks differs by tensor). Pools, rows and
columns are exact. A pass's intermediates are an upper bound: what the code of a decoder layer, a sampler and
a draft keeps alive at its worst moment. Knows sizes and nothing of who allocates them.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.batch import KVGroup, KVLayout
from engine.models.shape import ModelShape

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8, "bool": 1}
INT4_BYTES = 0.5 + 4 / 32  # half a byte a weight, and a bfloat16 scale and zero for every 32
LOGIT_BYTES = 44  # of a logit: fp32, what the head returned, and the copies of penalties and filters
TOKEN_BYTES = 512  # of a token: its ids, positions, slots, coins and the like
KERNEL_BYTES = 64 << 10  # of a captured launch: a rule of thumb; a run's result says what its graphs took
LAYER_KERNELS, STEP_KERNELS, DRAFT_KERNELS = 12, 60, 30  # in a decode step: a layer, the rest, a draft's pass


@dataclass(frozen=True)
class Passes:
    """The passes that memory has to suffice for. running: requests; width: tokens of each in a decode step;
    chunk: tokens of the largest prefill pass; states: layer inputs a token that are kept for a draft; drafts:
    whether a draft model follows."""

    running: int
    width: int
    chunk: int
    states: int = 0
    drafts: bool = False


@dataclass(frozen=True)
class Graphs:
    """What is captured. decode, prefill: graphs of either kind (pieces of one prefill pass count as one);
    draft_passes: of a draft in a decode step; largest: tokens of the largest prefill graph; lanes: sets of
    prefill graphs, each with memory of its own."""

    decode: int = 0
    prefill: int = 0
    draft_passes: int = 0
    largest: int = 0
    lanes: int = 1


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


def row_bytes(rows: int, context: int, page_size: int, relay_bytes: int) -> int:
    """Tokens, lengths, page table and what a drafter relays."""
    pages = -(-context // page_size)
    return rows * ((context + 1 + pages) * BYTES["int32"] + relay_bytes)


def decode_bytes(shape: ModelShape, compute: str, passes: Passes) -> int:
    """Intermediates of the largest decode step, logits and what is made of them included."""
    tokens = passes.running * passes.width
    return _pass_bytes(shape, compute, tokens, passes) + tokens * shape.vocab_size * LOGIT_BYTES


def prefill_bytes(shape: ModelShape, compute: str, passes: Passes) -> int:
    """Of the largest prefill pass; each of its requests may emit."""
    emitting = min(passes.running, passes.chunk)
    logits = emitting * shape.vocab_size * LOGIT_BYTES
    return _pass_bytes(shape, compute, passes.chunk, passes) + logits


def prefill_graph_bytes(shape: ModelShape, compute: str, passes: Passes, graphs: Graphs) -> int:
    """Of graphs over prefill passes: intermediates in memory of their own, and what pieces hand on."""
    if not graphs.prefill:
        return 0
    return 2 * graphs.lanes * _pass_bytes(shape, compute, graphs.largest, passes)


def kernels_of(shape: ModelShape, graphs: Graphs) -> tuple[int, int]:
    """Launches of a decode graph and of a prefill graph, about."""
    layers = shape.num_layers * LAYER_KERNELS
    return layers + STEP_KERNELS + graphs.draft_passes * DRAFT_KERNELS, layers


def _pass_bytes(shape: ModelShape, compute: str, tokens: int, passes: Passes) -> int:
    """A layer at its worst: the stream before and after attention, what went into attention, the MLP."""
    hidden, heads = shape.hidden_size, shape.q_size + shape.kv_size
    elements = 6 * hidden + 3 * heads + 3 * shape.intermediate_size
    kept = 2 * passes.states * hidden  # the states, and the same side by side
    if passes.drafts:  # the target's result, which outlives its pass, and the draft's wider input
        kept += 4 * hidden
    return tokens * ((elements + kept) * BYTES[compute] + TOKEN_BYTES)


def _embedding(shape: ModelShape) -> int:
    return shape.vocab_size * shape.hidden_size


def _layers(shape: ModelShape) -> int:
    attention = shape.hidden_size * (2 * shape.q_size + 2 * shape.kv_size)
    biases = (shape.q_size + 2 * shape.kv_size) if shape.qkv_bias else 0
    biases += shape.hidden_size if shape.o_bias else 0
    norms = 2 * shape.hidden_size + (2 * shape.head_dim if shape.qk_norm else 0)
    return shape.num_layers * (attention + biases + norms + 3 * shape.hidden_size * shape.intermediate_size)
