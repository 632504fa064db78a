"""The least time that a pass can take: bytes over bandwidth, flops over the matrix rate; from shapes alone.

Two terms: weights are read and multiplied at the same time, so the larger of the two counts; keys and values
are read beside them. Activations, norms and launches are left out: that is what a floor leaves out.
"""

from __future__ import annotations

from benchmarks.ceilings import Ceilings
from engine.footprints import kv_layout
from engine.models.shape import ModelShape

SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def matrix_weights(shape: ModelShape, head: bool = True) -> int:
    """Weights that every token is multiplied with; an embedding is looked up, not read."""
    layers = shape.num_layers * sum(outputs * inputs for outputs, inputs in shape.layer_products)
    return layers + (shape.hidden_size * shape.vocab_size if head else 0)


def kv_bytes(shape: ModelShape, dtype: str, tokens: int) -> int:
    """Keys and values of so many tokens."""
    return kv_layout(shape, dtype).bytes_per_token() * tokens


def byte_floor(shape: ModelShape, dtype: str, ceilings: Ceilings, batch: int, context: int) -> float:
    """Seconds of a decode step: all weights once and the keys and values of the batch."""
    read = matrix_weights(shape) * SIZES[dtype] + kv_bytes(shape, dtype, batch * context)
    return read / ceilings.bandwidth


def two_term_floor(
    shape: ModelShape, dtype: str, ceilings: Ceilings, tokens: int, kv_tokens: int, heads: int | None = None
) -> float:
    """Seconds of a pass of `tokens` tokens over `kv_tokens` cached ones; heads: tokens that need logits
    (None: all)."""
    weights = matrix_weights(shape) * SIZES[dtype] / ceilings.bandwidth
    rows = tokens if heads is None else heads
    head = shape.hidden_size * shape.vocab_size
    flops = 2.0 * (matrix_weights(shape, head=False) * tokens + head * rows)
    return max(weights, flops / ceilings.flops) + kv_bytes(shape, dtype, kv_tokens) / ceilings.bandwidth


def attention_flops(shape: ModelShape, queries: int, keys: float) -> float:
    """Of a pass whose queries see `keys` keys on average: scores and weighted sums, all layers."""
    return 4.0 * shape.num_layers * shape.num_heads * shape.head_dim * queries * keys


def prefill_floor(shape: ModelShape, dtype: str, ceilings: Ceilings, tokens: int) -> float:
    """Seconds of one prompt: its products and its causal attention at the matrix rate; one row of logits."""
    products = two_term_floor(shape, dtype, ceilings, tokens, 0, heads=1)
    return products + attention_flops(shape, tokens, tokens / 2) / ceilings.flops
