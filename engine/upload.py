"""One packed host-to-device copy a step: what the scheduler decided, as tensors.

Everything is laid out in a single int32 buffer (pinned on CUDA), copied once in stream order and cut into
views on the device. Knows the layout and nothing of what the values mean.
Legend: B requests, T tokens, E emitting requests, N new rows, K words of a packed sampling row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch import Mode, NewRow, ScheduledStep
from engine.sampling.asked import SamplingRow

Ints = NDArray[np.int32]
SamplingPacker = Callable[[Sequence[SamplingRow]], Ints]  # n rows -> int32 [n, K]


@dataclass(frozen=True)
class TableWrites:
    """Device views of what is written to the table before the pass; None or empty where there is nothing."""

    page_index: Tensor | None  # int64 [n] flat index into page_table
    page_value: Tensor | None  # int32 [n]
    new_rows: Tensor | None  # int64 [N]
    new_seq_lens: Tensor  # int32 [N]
    sampling: Tensor  # int32 [N, K]
    token_index: Tensor  # int64 [tokens of the new rows] flat index into tokens
    token_value: Tensor  # int32
    shaped_rows: Tensor | None  # int64 [S] new rows that keep penalty counts
    shaped_prompt_lens: Tensor  # int32 [S]
    shaped_known_lens: Tensor  # int32 [S] prompt and what had been generated before a retraction


@dataclass(frozen=True)
class BatchRows:
    """Which rows a pass works on; kept from step to step while the batch does not change."""

    rows: Tensor  # int64 [B]
    query_start: Tensor  # int32 [B + 1]


@dataclass(frozen=True)
class ChunkInputs:
    """What an EXTEND pass needs besides."""

    token_rows: Tensor  # int64 [T] table row of each token
    positions: Tensor  # int64 [T]
    emit_index: Tensor  # int64 [E] which of the B requests emit
    last_token: Tensor  # int64 [E] their last token in T


@dataclass(frozen=True)
class StepInputs:
    """Device inputs of a step besides the table; chunk is None for VERIFY."""

    batch: BatchRows
    writes: TableWrites | None
    chunk: ChunkInputs | None


@dataclass(frozen=True)
class Packed:
    """The host half of an upload. buffer: int32, pinned on CUDA; spans: name -> [start, end) in it."""

    buffer: Tensor
    spans: Mapping[str, tuple[int, int]]


class Uploader:
    """Packs a ScheduledStep and brings it to the device. row_context and row_pages: C and P of the table.

    `pack` runs on the host in launch order, `to_device` with the steps in the same order: the rows of an
    unchanged decode batch are sent once.
    """

    def __init__(
        self, device: torch.device, row_context: int, row_pages: int, pack_sampling: SamplingPacker
    ) -> None:
        self._device = device
        self._row_context = row_context
        self._row_pages = row_pages
        self._pack_sampling = pack_sampling
        self._packed_batch: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._device_batch: BatchRows | None = None

    def pack(self, step: ScheduledStep) -> Packed:
        """Lay the step out in one buffer."""
        fields = self._page_fields(step.new_pages)
        batch = (step.rows, step.query_lens)
        if batch != self._packed_batch:
            self._packed_batch = batch
            fields.append(("rows", np.array(step.rows, dtype=np.int32)))
            fields.append(("query_start", _prefix_sums(step.query_lens)))
        if step.mode is Mode.EXTEND:
            fields += _chunk_fields(step)
        if step.new_rows:
            fields += self._new_row_fields(step.new_rows)
        return self._join(fields)

    def _page_fields(self, new_pages: Sequence[tuple[int, int, int]]) -> list[tuple[str, Ints]]:
        """In front, where 64-bit indices are aligned: most decode steps of a large batch bring some, and are
        spared a cast on the device."""
        if not new_pages:
            return []
        pages = np.array(new_pages, dtype=np.int64)
        index = pages[:, 0] * self._row_pages + pages[:, 1]
        return [("page_index", index.view(np.int32)), ("page_value", pages[:, 2].astype(np.int32))]

    def _new_row_fields(self, new: tuple[NewRow, ...]) -> list[tuple[str, Ints]]:
        index = [np.arange(len(r.tokens), dtype=np.int32) + r.row * self._row_context for r in new]
        shaped = [r for r in new if r.sampling.shaped]
        return [
            ("new_rows", np.array([r.row for r in new], dtype=np.int32)),
            ("new_seq_lens", np.array([r.seq_len for r in new], dtype=np.int32)),
            ("sampling", self._pack_sampling([r.sampling for r in new]).ravel()),
            ("token_index", np.concatenate(index)),
            ("token_value", np.concatenate([np.asarray(r.tokens, dtype=np.int32) for r in new])),
            ("shaped_rows", np.array([r.row for r in shaped], dtype=np.int32)),
            ("shaped_prompt_lens", np.array([r.prompt_len for r in shaped], dtype=np.int32)),
            ("shaped_known_lens", np.array([len(r.tokens) for r in shaped], dtype=np.int32)),
        ]

    def _join(self, fields: list[tuple[str, Ints]]) -> Packed:
        spans, offset = {}, 0
        for name, values in fields:
            spans[name] = (offset, offset + values.size)
            offset += values.size
        buffer = torch.empty(offset, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        if fields:
            np.concatenate([values for _, values in fields], out=buffer.numpy())
        return Packed(buffer, spans)

    def to_device(self, packed: Packed) -> StepInputs:
        """One copy in stream order, then views."""
        spans = packed.spans
        sent = packed.buffer.to(self._device, non_blocking=True) if spans else packed.buffer
        view = {name: sent[start:end] for name, (start, end) in spans.items()}
        if "rows" in view:
            self._device_batch = BatchRows(view["rows"].long(), view["query_start"])
        assert self._device_batch is not None, "to_device out of order"
        return StepInputs(self._device_batch, _writes(view), _chunk(view))


def _chunk(view: Mapping[str, Tensor]) -> ChunkInputs | None:
    if "positions" not in view:
        return None
    names = ("token_rows", "positions", "emit_index", "last_token")
    return ChunkInputs(*(view[name].long() for name in names))


def _writes(view: Mapping[str, Tensor]) -> TableWrites | None:
    pages, new = "page_index" in view, "new_rows" in view
    if not (pages or new):
        return None
    empty = torch.empty(0, dtype=torch.int32)
    count = view["new_rows"].numel() if new else 0
    shaped = new and view["shaped_rows"].numel() > 0
    return TableWrites(
        page_index=view["page_index"].view(torch.int64) if pages else None,
        page_value=view["page_value"] if pages else None,
        new_rows=view["new_rows"].long() if new else None,
        new_seq_lens=view["new_seq_lens"] if new else empty,
        sampling=view["sampling"].view(count, -1) if new else empty,
        token_index=view["token_index"].long() if new else empty,
        token_value=view["token_value"] if new else empty,
        shaped_rows=view["shaped_rows"].long() if shaped else None,
        shaped_prompt_lens=view["shaped_prompt_lens"] if shaped else empty,
        shaped_known_lens=view["shaped_known_lens"] if shaped else empty,
    )


def _prefix_sums(lens: tuple[int, ...]) -> Ints:
    out = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=out[1:])
    return out


def _chunk_fields(step: ScheduledStep) -> list[tuple[str, Ints]]:
    """Rows and positions of every token, and the last token of each request that emits."""
    lens = np.array(step.query_lens, dtype=np.int32)
    ends = np.cumsum(lens, dtype=np.int32)
    starts = np.array(step.bounds, dtype=np.int32)
    emits = np.flatnonzero(np.array(step.emits, dtype=bool)).astype(np.int32)
    within = np.arange(int(lens.sum()), dtype=np.int32) - np.repeat(ends - lens, lens)
    return [
        ("token_rows", np.repeat(np.array(step.rows, dtype=np.int32), lens)),
        ("positions", within + np.repeat(starts, lens)),
        ("emit_index", emits),
        ("last_token", ends[emits] - 1),
    ]
