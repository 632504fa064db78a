"""Choosing one token a row: the largest logit, or the one that a coin points at. Fixed vocabulary order.

Knows logits and weights only, no parameters. Both work in two levels (blocks of the vocabulary, then one
block), which reads the vocabulary once. Legend: N rows, V vocabulary, K blocks, S tokens a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK_SIZES = (256, 128, 64, 32)


def argmax_tokens(logits: Tensor) -> Tensor:
    """int64 [N]: the first index of each row's largest value."""
    rows, vocab = logits.shape
    size = _block_size(vocab)
    if size == 0:
        return logits.argmax(-1)
    blocks = logits.reshape(rows, vocab // size, size)
    block = blocks.amax(-1).argmax(-1)
    return block * size + _take_block(blocks, block).argmax(-1)


def inverse_cdf(weights: Tensor, coin: Tensor) -> Tensor:
    """int64 [N]: the token at which the running sum of the weights first exceeds coin * total.

    weights: fp32 [N, V], finite, not negative, not all zero; coin: float64 [N] in (0, 1). A token of weight
    zero is never chosen. Sums run in float64, except inside a block.
    """
    rows, vocab = weights.shape
    size = _block_size(vocab) or vocab
    blocks = weights.reshape(rows, vocab // size, size)
    block, rest = _pick(blocks.sum(-1).double(), coin)
    within, _ = _pick(_take_block(blocks, block).double(), rest)
    return block * size + within


def sum_rows(values: Tensor) -> Tensor:
    """fp32 [N]: the sum of each row, in an order that does not depend on N (a plain sum's does on the
    CPU)."""
    rows, vocab = values.shape
    size = _block_size(vocab)
    return values.reshape(rows, vocab // size, size).sum(-1).sum(-1) if size else values.sum(-1)


def _pick(weights: Tensor, coin: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen index int64 [N], and the coin left for a choice inside of it: its place in the interval
    hit."""
    edges = weights.cumsum(-1)
    total = edges[:, -1]
    target = torch.minimum(coin * total, torch.nextafter(total, torch.zeros_like(total))).unsqueeze(1)
    index = torch.searchsorted(edges, target, right=True).clamp_max(weights.shape[1] - 1)
    high, weight = edges.gather(1, index), weights.gather(1, index)
    rest = (target - (high - weight)) / weight
    return index.squeeze(1), rest.squeeze(1).clamp(0.0, 1.0)


def _take_block(blocks: Tensor, block: Tensor) -> Tensor:
    """[N, K, S] and int64 [N] -> [N, S]."""
    index = block.view(-1, 1, 1).expand(-1, 1, blocks.shape[2])
    return blocks.gather(1, index).squeeze(1)


def _block_size(vocab: int) -> int:
    """The largest block that divides the vocabulary; 0 where none does or the vocabulary is small."""
    return next((size for size in _BLOCK_SIZES if vocab % size == 0 and vocab > size), 0)
