"""Cutting a batch: every field is split or declared shared, and the halves say what the whole did (B2)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from engine.batch import ForwardBatch, Mode, SeqLens
from engine.errors import InternalError
from engine.two_batches import split as splitting
from engine.two_batches.split import BATCH, LENS, Cut, Cutter, middle, split

SHARED = {"mode", "page_table", "width", "page_size"}


def verify_batch(size: int, width: int, *, window: int | None = None) -> ForwardBatch:
    tokens = size * width
    keys = window or width
    return ForwardBatch(
        mode=Mode.VERIFY,
        rows=torch.arange(1, size + 1),
        input_ids=torch.arange(tokens),
        positions=torch.arange(tokens) + 100,
        slots=torch.arange(tokens) + 200,
        seq_lens=SeqLens(torch.arange(size, dtype=torch.int32) + 5, tuple(range(9, 9 + size))),
        query_start=torch.arange(0, tokens + 1, width, dtype=torch.int32),
        query_lens=(width,) * size,
        page_table=torch.zeros(9, 4, dtype=torch.int32),
        width=width,
        tree_mask=torch.rand(size, width, keys) < 0.5,
        page_size=16,
        window_slots=None if window is None else torch.arange(size * keys).view(size, keys),
    )


def extend_batch(*lens: int, host: bool = False) -> ForwardBatch:
    size, tokens = len(lens), sum(lens)
    known = tuple(range(size))
    return ForwardBatch(
        mode=Mode.EXTEND,
        rows=torch.arange(1, size + 1),
        input_ids=torch.arange(tokens),
        positions=torch.arange(tokens) + 100,
        slots=torch.arange(tokens) + 200,
        seq_lens=SeqLens(torch.tensor(known, dtype=torch.int32), known, known if host else None),
        query_start=torch.tensor([0, *lens], dtype=torch.int32).cumsum(0).int(),
        query_lens=lens,
        page_table=torch.zeros(9, 4, dtype=torch.int32),
        logit_rows=torch.tensor([tokens - 1]),
    )


@pytest.mark.parametrize(("cls", "rules"), [(ForwardBatch, BATCH), (SeqLens, LENS)])
def test_every_field_is_split_or_declared_shared(cls: type, rules: dict[str, object]) -> None:
    """Whoever adds a field to the batch has to say here what becomes of it."""
    assert {field.name for field in dataclasses.fields(cls)} == set(rules)


def test_a_field_that_nobody_declared_fails() -> None:
    @dataclass(frozen=True)
    class Longer(ForwardBatch):
        padding_mode: str | None = None

    whole = verify_batch(4, 1)
    longer = Longer(**{f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)})
    with pytest.raises(InternalError, match=r"Longer\.padding_mode is neither split nor declared shared"):
        split(longer, Cut(2, 2))


@pytest.mark.parametrize(
    "whole",
    [
        verify_batch(2, 1),
        verify_batch(5, 1),
        verify_batch(5, 3),
        verify_batch(7, 4, window=6),
        extend_batch(5, 1, 1, 9),
        extend_batch(1, 1, 30),
        extend_batch(7, 2, host=True),
    ],
    ids=["two", "odd", "tree", "window", "prompts", "one long", "host lengths"],
)
def test_the_halves_are_the_whole_again(whole: ForwardBatch) -> None:
    cut = middle(whole)
    assert cut is not None
    first, second = split(whole, cut)
    assert (first.size, first.input_ids.shape[0]) == (cut.requests, cut.tokens)
    for name in ("rows", "input_ids", "positions", "slots"):
        assert torch.equal(torch.cat((getattr(first, name), getattr(second, name))), getattr(whole, name))
    for name in SHARED:
        assert getattr(first, name) is getattr(second, name) is getattr(whole, name)
    for name in ("tree_mask", "window_slots"):
        given = getattr(whole, name)
        halves = [getattr(half, name) for half in (first, second)]
        assert halves == [None, None] if given is None else torch.equal(torch.cat(halves), given)
    assert first.query_lens + second.query_lens == whole.query_lens
    for half in (first, second):
        assert half.query_start.dtype == torch.int32
        assert half.query_start.tolist() == [0, *torch.tensor(half.query_lens).cumsum(0).tolist()]
        assert half.logit_rows is None
    lens = [half.seq_lens for half in (first, second)]
    assert torch.equal(torch.cat([part.device for part in lens]), whole.seq_lens.device)
    assert lens[0].bound + lens[1].bound == whole.seq_lens.bound
    hosts = [part.host for part in lens]
    assert hosts == [None, None] if whole.seq_lens.host is None else sum(hosts, ()) == whole.seq_lens.host


@pytest.mark.parametrize(
    ("batch", "requests"),
    [
        (verify_batch(2, 3), 1),
        (verify_batch(5, 1), 3),
        (verify_batch(6, 2), 3),
        (extend_batch(30, 1, 1), 1),
        (extend_batch(1, 1, 30), 2),
        (extend_batch(5, 5, 5, 5), 2),
        (extend_batch(2, 3, 5), 2),
    ],
)
def test_the_boundary_balances_the_tokens(batch: ForwardBatch, requests: int) -> None:
    cut = middle(batch)
    assert cut == Cut(requests, sum(batch.query_lens[:requests]))


@pytest.mark.parametrize("batch", [verify_batch(1, 4), extend_batch(17), verify_batch(0, 2)])
def test_one_request_or_none_is_not_cut(batch: ForwardBatch) -> None:
    assert middle(batch) is None
    assert middle(dataclasses.replace(batch, mode=Mode.IDLE)) is None


def test_halves_start_where_kernels_expect_a_pointer() -> None:
    """A kernel is compiled anew for a pointer off a multiple of 16 bytes: while serving, that must not be."""
    for size in range(2, 9):
        for half in split(verify_batch(size, 1), middle(verify_batch(size, 1))):  # type: ignore[arg-type]
            for tensor in (half.rows, half.positions, half.slots, half.seq_lens.device, half.query_start):
                assert tensor.data_ptr() % splitting.ALIGNMENT == 0


@pytest.mark.parametrize("cutter", [Cutter(2, 32), Cutter(9, 2), Cutter(2, 2)], ids=str)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_largest_pass_that_stays_whole(cutter: Cutter, width: int) -> None:
    whole = cutter.whole(width)
    assert [len(cutter.parts(verify_batch(size, width))) for size in (whole, whole + 1)] == [1, 2]
