"""Packing, unpacking and counting against plain Python."""

from collections import Counter

import numpy as np
import pytest
import torch

from engine.sampling.asked import SamplingRow
from engine.sampling.columns import FULL_WORDS, SHORT_WORDS, SamplingColumns, pack, pack_rows
from engine.sampling.limits import MAX_BIASES, MAX_STOP_IDS, column_bytes

CPU = torch.device("cpu")
FULL = SamplingRow(
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    frequency_penalty=-0.5,
    presence_penalty=0.25,
    key=0xFEDCBA9876543210,
    min_len=12,
    max_len=1 << 30,
    max_drafts=3,
    stop_ids=tuple(range(100, 100 + MAX_STOP_IDS)),
    bias=tuple((i, i / 7 - 30) for i in range(MAX_BIASES)),
)
PLAIN = SamplingRow(key=-1, stop_ids=(2,), max_len=77)


def columns(rows: int = 6, vocab: int = 1000, penalties: bool = False) -> SamplingColumns:
    return SamplingColumns(rows, vocab, CPU, penalties=penalties)


def check_row(got: SamplingColumns, at: int, row: SamplingRow) -> None:
    for name in (
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
    ):
        assert getattr(got, name)[at].item() == np.float32(getattr(row, name)), name
    for name in ("top_k", "min_len", "max_len", "max_drafts"):
        assert getattr(got, name)[at].item() == getattr(row, name), name
    assert got.key[at].item() & (1 << 64) - 1 == row.key & (1 << 64) - 1
    padded = (*row.stop_ids, *[-1] * (MAX_STOP_IDS - len(row.stop_ids)))
    assert tuple(got.stop_ids[at].tolist()) == padded
    used = got.bias_ids[at] >= 0
    seen = zip(got.bias_ids[at][used].tolist(), got.bias_values[at][used].tolist(), strict=True)
    assert dict(seen) == {i: float(np.float32(v)) for i, v in row.bias}


@pytest.mark.parametrize("rows", [[FULL], [PLAIN], [PLAIN, FULL], [FULL, PLAIN, FULL]], ids=len)
@pytest.mark.parametrize("packer", ["each", "together"])
def test_round_trip(rows, packer):
    got = columns()
    at = torch.tensor([4, 2, 5][: len(rows)])
    words = np.stack([pack(r) for r in rows]) if packer == "each" else pack_rows(rows)
    got.unpack_into(torch.from_numpy(words), at)
    for place, row in zip(at.tolist(), rows, strict=True):
        check_row(got, place, row)
    check_row(got, 0, SamplingRow(max_len=2**31 - 1, max_drafts=2**31 - 1))  # the padding row is untouched


def test_a_reused_row_forgets_its_predecessor():
    got, at = columns(), torch.tensor([3])
    got.unpack_into(torch.from_numpy(pack_rows([FULL])), at)
    got.unpack_into(torch.from_numpy(pack_rows([PLAIN])), at)
    check_row(got, 3, PLAIN)


def test_a_row_without_bias_is_a_tiny_upload():
    assert pack_rows([PLAIN]).nbytes == SHORT_WORDS * 4 <= 160
    assert pack_rows([PLAIN, FULL]).shape == (2, FULL_WORDS)


@pytest.mark.parametrize("penalties", [False, True])
def test_memory_arithmetic_is_what_is_allocated(penalties):
    got = columns(7, 513, penalties)
    assert got.bytes() == column_bytes(7, 513, penalties)


@pytest.mark.parametrize("seed", range(5))
def test_counts_equal_a_histogram_of_the_committed_tokens(seed):
    rng = np.random.default_rng(seed)
    vocab, rows, width = 11, torch.tensor([1, 4, 2]), 4
    got = columns(5, vocab, penalties=True)
    got.output_counts.fill_(9)  # what a predecessor left
    got.prompt_mask.fill_(True)
    tokens = torch.from_numpy(rng.integers(0, vocab, (5, 30), dtype=np.int32))
    prompt, known = rng.integers(1, 10, 3), rng.integers(10, 20, 3)
    got.count_known(rows, tokens, torch.tensor(prompt).int(), torch.tensor(known).int())
    expected = [
        Counter(tokens[r, p:k].tolist()) for r, p, k in zip(rows.tolist(), prompt, known, strict=True)
    ]
    for _ in range(3):
        emitted = torch.from_numpy(rng.integers(0, vocab, (3, width), dtype=np.int32))
        count = torch.from_numpy(rng.integers(1, width + 1, 3, dtype=np.int32))
        got.count_outputs(rows, emitted, count)
        for histogram, run, n in zip(expected, emitted.tolist(), count.tolist(), strict=True):
            histogram.update(run[:n])
    for row, histogram, p in zip(rows.tolist(), expected, prompt, strict=True):
        assert got.output_counts[row].tolist() == [histogram[t] for t in range(vocab)]
        assert set(got.prompt_mask[row].nonzero().flatten().tolist()) == set(tokens[row, :p].tolist())


def test_padding_rows_may_repeat_in_a_batch():
    got = columns(3, 8, penalties=True)
    got.count_outputs(torch.tensor([0, 0, 2]), torch.tensor([[1], [1], [5]]).int(), torch.ones(3).int())
    assert got.output_counts[2].tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


def test_without_penalties_counting_is_a_no_op():
    got = columns(3, 8)
    one = torch.tensor([1])
    got.count_outputs(one, torch.tensor([[1]]).int(), one.int())
    got.count_known(one, torch.zeros(3, 4, dtype=torch.int32), one.int(), one.int())
    assert got.output_counts is None
