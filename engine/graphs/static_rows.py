"""The rows of a decode batch at fixed addresses, padded with row 0 up to a captured size.

Knows rows and widths; nothing of what is done with them. Legend: B requests, W width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.upload import BatchRows


class StaticRows:
    """One buffer for all sizes: the batch of the coming step in front, zeros behind it."""

    def __init__(self, largest: int, device: torch.device) -> None:
        self._largest = largest
        self._rows = torch.zeros(largest, dtype=torch.int64, device=device)
        self._starts: dict[int, Tensor] = {}
        self._loaded: BatchRows | None = None
        self._blank = 0  # how often `blank` is entered

    def holds(self, rows: Tensor) -> bool:
        """Whether these rows are a part of the buffer."""
        return rows.data_ptr() == self._rows.data_ptr()

    def load(self, batch: BatchRows) -> None:
        """Put a batch in front. One that is there already, as in most steps, costs nothing."""
        if batch is not self._loaded:
            self._loaded = batch
            self._fill(batch.rows)

    def padded(self, size: int, width: int) -> BatchRows:
        """The buffer as a batch of `size` requests with `width` tokens each."""
        starts = self._starts.get(width)
        if starts is None:
            end = (self._largest + 1) * width
            starts = torch.arange(0, end, width, dtype=torch.int32, device=self._rows.device)
            self._starts[width] = starts
        return BatchRows(self._rows[:size], starts[: size + 1])

    @contextmanager
    def blank(self) -> Iterator[None]:
        """Only row 0 inside, which nobody reads: a step that runs there changes no request."""
        self._rows.zero_()
        self._blank += 1
        try:
            yield
        finally:
            self._blank -= 1
            if self._loaded is not None and not self._blank:
                self._fill(self._loaded.rows)

    def _fill(self, rows: Tensor) -> None:
        count = rows.numel()
        self._rows[count:].zero_()
        self._rows[:count].copy_(rows)
