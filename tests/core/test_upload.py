"""The one buffer of a step: what the scheduler decided comes out on the device as it went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.batch import Mode, NewRow, ScheduledStep
from engine.sampling.asked import SamplingRow
from engine.sampling.columns import pack_rows
from engine.upload import Uploader

PAGES = ((3, 0, 11), (3, 1, 12), (70_000, 65_535, 13))  # (row, place in the row, page)


def uploader() -> Uploader:
    return Uploader(torch.device("cpu"), row_context=100, row_pages=65_536, pack_sampling=pack_rows)


def verify(step_id: int, pages: tuple[tuple[int, int, int], ...] = ()) -> ScheduledStep:
    return ScheduledStep(step_id, Mode.VERIFY, (3, 5), (9, 9), (1, 1), (True, True), 1, new_pages=pages)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_page_entries_are_flat_64_bit_indices(count: int) -> None:
    """Beyond 2^31, and whatever else is in the buffer."""
    packer = uploader()
    inputs = packer.to_device(packer.pack(verify(1, PAGES[:count])))
    assert inputs.batch.rows.tolist() == [3, 5]
    assert inputs.batch.query_start.tolist() == [0, 1, 2]
    assert inputs.writes is not None
    index, value = inputs.writes.page_index, inputs.writes.page_value
    assert index is not None
    assert value is not None
    assert index.dtype == torch.int64
    assert index.tolist() == [row * 65_536 + place for row, place, _ in PAGES[:count]]
    assert value.tolist() == [page for _, _, page in PAGES[:count]]


def test_an_unchanged_batch_is_sent_once() -> None:
    packer = uploader()
    first = packer.to_device(packer.pack(verify(1)))
    again = packer.pack(verify(2))
    assert again.buffer.numel() == 0
    second = packer.to_device(again)
    assert second.batch is first.batch
    assert second.writes is None


def test_a_prompt_brings_its_row_its_pages_and_its_places() -> None:
    packer = uploader()
    new = NewRow(4, np.array([7, 8, 9, 6, 5], dtype=np.int32), 2, 5, SamplingRow())
    step = ScheduledStep(
        1, Mode.EXTEND, (4,), (2,), (3,), (True,), new_rows=(new,), new_pages=((4, 0, 21), (4, 1, 22))
    )
    inputs = packer.to_device(packer.pack(step))
    assert inputs.writes is not None
    assert inputs.writes.page_index is not None
    assert inputs.writes.page_index.tolist() == [4 * 65_536, 4 * 65_536 + 1]
    assert inputs.writes.token_index.tolist() == [400, 401, 402, 403, 404]
    assert inputs.writes.token_value.tolist() == [7, 8, 9, 6, 5]
    assert inputs.writes.new_seq_lens.tolist() == [2]
    assert inputs.chunk is not None
    assert inputs.chunk.positions.tolist() == [2, 3, 4]
    assert inputs.chunk.token_rows.tolist() == [4, 4, 4]
    assert inputs.chunk.last_token.tolist() == [2]
