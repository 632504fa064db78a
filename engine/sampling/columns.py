"""Sampling parameters as device columns of the request table, and how the host packs them for one upload.

Knows the layout; not what a penalty or a filter means.
Legend: R table rows, V vocabulary, n new rows, K words of a packed row, L positions of a token row, W width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.sampling.asked import SamplingRow
from engine.sampling.limits import MAX_BIASES, MAX_STOP_IDS

Ints = NDArray[np.int32]

_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_INTS = ("top_k", "min_len", "max_len", "max_drafts")
_KEY_AT = len(_FLOATS) + len(_INTS)
_STOP_AT = _KEY_AT + 2
SHORT_WORDS = _STOP_AT + MAX_STOP_IDS
FULL_WORDS = SHORT_WORDS + 2 * MAX_BIASES


def pack(row: SamplingRow, words: int = FULL_WORDS) -> Ints:
    """int32 [words]: floats by their bits, the key as two words, low first, -1 padded lists. SHORT_WORDS
    leaves no room for biases."""
    packed = np.full(words, -1, dtype=np.int32)
    packed[: len(_FLOATS)] = _bits(getattr(row, name) for name in _FLOATS)
    packed[len(_FLOATS) : _KEY_AT] = [getattr(row, name) for name in _INTS]
    packed[_KEY_AT:_STOP_AT] = np.array([row.key & (1 << 64) - 1], dtype="<u8").view(np.int32)
    packed[_STOP_AT : _STOP_AT + len(row.stop_ids)] = row.stop_ids
    if row.bias:
        packed[SHORT_WORDS : SHORT_WORDS + len(row.bias)] = [token for token, _ in row.bias]
        values = SHORT_WORDS + MAX_BIASES
        packed[values : values + len(row.bias)] = _bits(bias for _, bias in row.bias)
    return packed


def pack_rows(rows: Sequence[SamplingRow]) -> Ints:
    """int32 [n, K]: the rows of one upload; K is SHORT_WORDS unless one of them has a logit bias."""
    words = FULL_WORDS if any(row.bias for row in rows) else SHORT_WORDS
    return np.stack([pack(row, words) for row in rows])


def _bits(values: Iterable[float]) -> Ints:
    return np.array(list(values), dtype=np.float32).view(np.int32)


class SamplingColumns:
    """Device columns [R]; see engine.sampling.asked.SamplingRow for their meaning.

    key int64; stop_ids int32 [R, MAX_STOP_IDS] and bias_ids int32 [R, MAX_BIASES] are -1 padded,
    bias_values fp32. output_counts int32 [R, V] and prompt_mask bool [R, V] exist when `penalties` are
    allowed, else they are None.
    Row 0 is padding: greedy, never stops, never ends.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device, *, penalties: bool) -> None:
        def column(value: float, dtype: torch.dtype, *width: int) -> Tensor:
            return torch.full((rows, *width), value, dtype=dtype, device=device)

        self.vocab_size = vocab_size
        self.temperature = column(0, torch.float32)
        self.top_p = column(1, torch.float32)
        self.min_p = column(0, torch.float32)
        self.repetition_penalty = column(1, torch.float32)
        self.frequency_penalty = column(0, torch.float32)
        self.presence_penalty = column(0, torch.float32)
        self.top_k = column(0, torch.int32)
        self.min_len = column(0, torch.int32)
        self.max_len = column(torch.iinfo(torch.int32).max, torch.int32)
        self.max_drafts = column(torch.iinfo(torch.int32).max, torch.int32)
        self.key = column(0, torch.int64)
        self.stop_ids = column(-1, torch.int32, MAX_STOP_IDS)
        self.bias_ids = column(-1, torch.int32, MAX_BIASES)
        self.bias_values = column(0, torch.float32, MAX_BIASES)
        self.output_counts = column(0, torch.int32, vocab_size) if penalties else None
        self.prompt_mask = column(0, torch.bool, vocab_size) if penalties else None

    def bytes(self) -> int:
        """Device bytes held; engine.sampling.limits.column_bytes says the same beforehand."""
        return sum(t.numel() * t.element_size() for t in vars(self).values() if isinstance(t, Tensor))

    def unpack_into(self, packed: Tensor, rows: Tensor) -> None:
        """Write new requests' values. packed: int32 [n, K] as pack or pack_rows made it, on the device; rows:
        int64 [n]."""
        floats = packed[:, : len(_FLOATS)].view(torch.float32)
        for at, name in enumerate(_FLOATS):
            getattr(self, name)[rows] = floats[:, at]
        for at, name in enumerate(_INTS, start=len(_FLOATS)):
            getattr(self, name)[rows] = packed[:, at]
        low, high = packed[:, _KEY_AT].long(), packed[:, _KEY_AT + 1].long()
        self.key[rows] = (high << 32) | (low & 0xFFFFFFFF)
        self.stop_ids[rows] = packed[:, _STOP_AT:SHORT_WORDS]
        if packed.shape[1] == SHORT_WORDS:
            self.bias_ids.index_fill_(0, rows, -1)
        else:
            self.bias_ids[rows] = packed[:, SHORT_WORDS : SHORT_WORDS + MAX_BIASES]
            self.bias_values[rows] = packed[:, SHORT_WORDS + MAX_BIASES :].view(torch.float32)

    def count_known(self, rows: Tensor, tokens: Tensor, prompt_lens: Tensor, known_lens: Tensor) -> None:
        """Start the counts of new requests from their known tokens: the prompt marks prompt_mask, what had
        already been generated (before a retraction) counts as output. No-op where penalties are not
        allowed.

        rows: int64 [n]; tokens: int32 [R, L], the whole table; prompt_lens and known_lens: int32 [n].
        """
        if self.output_counts is None or self.prompt_mask is None:
            return
        known = tokens[rows]
        at = torch.arange(known.shape[1], device=known.device)
        is_prompt = at < prompt_lens.unsqueeze(1)
        is_output = (at < known_lens.unsqueeze(1)) & ~is_prompt
        ids = torch.where(is_prompt | is_output, known, 0).long()
        counts = torch.zeros(len(rows), self.vocab_size, dtype=torch.int32, device=known.device)
        self.output_counts[rows] = counts.scatter_add(1, ids, is_output.int())
        self.prompt_mask[rows] = counts.scatter_add(1, ids, is_prompt.int()) > 0

    def count_outputs(self, rows: Tensor, tokens: Tensor, n_emitted: Tensor) -> None:
        """Count committed tokens. rows: int64 [B]; tokens: int32 [B, W], the first n_emitted (int32 [B])
        are valid. No-op where penalties are not allowed."""
        if self.output_counts is None:
            return
        step = torch.arange(tokens.shape[1], device=tokens.device)
        valid = step < n_emitted.unsqueeze(1)
        ids = torch.where(valid, tokens, 0)
        at = rows.unsqueeze(1) * self.vocab_size + ids
        # not index_put_ with accumulate: on CUDA it sorts, and some versions of torch read the indices back
        self.output_counts.view(-1).scatter_add_(0, at.view(-1), valid.int().view(-1))
