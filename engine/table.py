"""The request table: the one place where tokens, lengths and pages of running requests live on the device.

The host writes prompts, page entries and sampling values through `apply`; the step alone writes output tokens
and lengths, through the `ledger`. Knows nothing of scheduling or of models.
Legend: R rows (row 0 is padding), C positions a row, P page entries a row, B requests, W width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.batch import kv_slots
from engine.sampling.columns import SamplingColumns
from engine.upload import TableWrites
from speculative.accept import Ledger
from speculative.base import RelayField


@dataclass(frozen=True)
class TableSize:
    """rows: R, padding included. context: C = longest request + 3 widths (the late step overshoots)."""

    rows: int
    context: int
    page_size: int

    @property
    def pages_per_row(self) -> int:
        return -(-self.context // self.page_size)


class RequestTable:
    """Device rows. tokens int32 [R, C]; seq_lens int32 [R], tokens whose KV is written; page_table int32 [R,
    P].

    A decoding row knows seq_lens + 1 tokens. Row 0 keeps length 0 and page 0, whatever is written to it.
    """

    def __init__(
        self,
        size: TableSize,
        columns: SamplingColumns,
        relay: Sequence[RelayField],
        device: torch.device,
        *,
        poison: bool = False,
    ) -> None:
        self.size = size
        self.columns = columns
        self.tokens = torch.zeros(size.rows, size.context, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(size.rows, dtype=torch.int32, device=device)
        self.page_table = torch.zeros(size.rows, size.pages_per_row, dtype=torch.int32, device=device)
        self.relay = {
            field.name: torch.zeros(size.rows, *field.shape, dtype=getattr(torch, field.dtype), device=device)
            for field in relay
        }
        self._poison = poison

    def apply(self, writes: TableWrites) -> None:
        """Write what the host decided before a step: new requests first, then page entries."""
        if writes.new_rows is not None:
            self._write_new_rows(writes)
        if writes.page_index is not None and writes.page_value is not None:
            self.page_table.view(-1).index_copy_(0, writes.page_index, writes.page_value)

    def _write_new_rows(self, writes: TableWrites) -> None:
        assert writes.new_rows is not None
        rows = writes.new_rows
        if self._poison:  # a token that nobody wrote must fail at the embedding, not read as id 0
            self.tokens.index_fill_(0, rows, -1)
        self.tokens.view(-1).index_copy_(0, writes.token_index, writes.token_value)
        self.seq_lens.index_copy_(0, rows, writes.new_seq_lens)
        self.columns.unpack_into(writes.sampling, rows)
        if writes.shaped_rows is not None:
            self.columns.count_known(
                writes.shaped_rows, self.tokens, writes.shaped_prompt_lens, writes.shaped_known_lens
            )

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """KV slots (int64, shape of positions) of `positions` int64 in `rows` int64, which must broadcast."""
        return kv_slots(self.page_table, self.size.page_size, rows, positions)

    @property
    def ledger(self) -> Ledger:
        """Where a step reads what is known, and enters the emitted runs and the new lengths."""
        return Ledger(self.tokens, self.seq_lens)

    def nbytes(self) -> int:
        own = [self.tokens, self.seq_lens, self.page_table, *self.relay.values()]
        return sum(t.numel() * t.element_size() for t in own)
