"""The target as a trainer sees it: whole sequences in, final and auxiliary states out, by serving's own path.

Knows the model, its attention and a scratch pool; not what the states are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import ForwardBatch, Mode, SeqLens
from engine.errors import UserError
from engine.kv_pool import KVPool

if TYPE_CHECKING:
    from backends.base import AttentionBackend
    from engine.factories import Sizes


class TargetStates:
    """A built model, read at `layers` (inputs of layers, ascending). KV goes to a pool of its own."""

    def __init__(
        self, model: Any, attention: AttentionBackend, sizes: Sizes, layers: Sequence[int], name: str
    ) -> None:
        """UserError when the model shows no hidden states of its layers."""
        served = model.aux_layers
        try:
            model.collect(layers)
        except UserError as error:
            raise UserError(
                f"{name} shows no hidden states of its layers, and an EAGLE3 draft is trained on them; "
                "use model=smollm2, model=tiny or model=local"
            ) from error
        model.collect(served)
        self._layers = tuple(layers)
        self.shape, self.device, self.dtype = model.shape, model.device, model.dtype
        self.norm = model.weights.final_norm
        self._model, self._attention = model, attention
        self._page_size, self._pages_per_row = sizes.page_size, sizes.table.pages_per_row
        self._pool: KVPool | None = None

    def embed(self, ids: Tensor) -> Tensor:
        """int64 [...] -> [..., H]."""
        embedded: Tensor = functional.embedding(ids, self._model.embedding())
        return embedded

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, H] final states -> fp32 [N, V]."""
        logits: Tensor = self._model.logits(hidden)
        return logits

    @torch.no_grad()
    def states(self, ids: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Whole sequences, ids int64 [T] end to end -> (final states [T, H], auxiliary states [T, A])."""
        batch = self._batch(ids, tuple(lengths))
        served = self._model.aux_layers
        self._model.collect(self._layers)
        try:
            self._attention.init_forward_metadata(batch)
            pool = self._scratch(lengths)
            final, aux = self._model.forward_with_aux(batch, self._attention, pool.layers)
        finally:
            self._model.collect(served)
        return final, aux

    def _batch(self, ids: Tensor, lengths: tuple[int, ...]) -> ForwardBatch:
        """Row i + 1 of a page table of its own holds sequence i in consecutive pages."""
        size, device = len(lengths), self.device
        pages = [self._pages(length) for length in lengths]
        firsts = list(accumulate(pages, initial=1))
        table = np.zeros((size + 1, max(self._pages_per_row, *pages)), dtype=np.int32)
        for row, (first, count) in enumerate(zip(firsts[:-1], pages, strict=True), start=1):
            table[row, :count] = np.arange(first, first + count)
        positions = np.concatenate([np.arange(length) for length in lengths])
        begins = np.repeat(np.array(firsts[:-1]) * self._page_size, lengths)

        def up(array: Any) -> Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        return ForwardBatch(
            mode=Mode.EXTEND,
            rows=torch.arange(1, size + 1, device=device),
            input_ids=ids,
            positions=up(positions),
            slots=up(begins + positions),
            seq_lens=SeqLens(torch.zeros(size, dtype=torch.int32, device=device), (0,) * size, (0,) * size),
            query_start=up(np.array(list(accumulate(lengths, initial=0)), dtype=np.int32)),
            query_lens=lengths,
            page_table=up(table),
            page_size=self._page_size,
        )

    def _scratch(self, lengths: Sequence[int]) -> KVPool:
        """A pool that holds these sequences."""
        pages = sum(self._pages(length) for length in lengths)
        if self._pool is None or self._pool.slots < (pages + 1) * self._page_size:
            self._pool = None
            grown = pages + pages // 4
            self._pool = KVPool(self._model.kv_layout, grown, self._page_size, self.device)
        return self._pool

    def _pages(self, length: int) -> int:
        return -(-length // self._page_size)
