"""How much of a weight is asked for before a product may start, and when such requests are not made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_cases import gpu, operands

from backends.triton import TritonAttention, _early
from engine.kernel_choices.plans import Plan
from kernels import linear
from kernels.launch import AT_ONCE, INTERPRETED, WAITED, dependent
from kernels.linear import Product, product
from kernels.linear_ahead import span

BF16 = torch.bfloat16
MIB = 1 << 20
TILE, ROWS = Plan("tile", 64, 64, split=4), Plan("rows", 4, 512)


@pytest.mark.parametrize(
    ("mib", "rows", "columns", "expected"),
    [
        (0, 4096, 4096, 0),
        (8, 4096, 4096, 1024),
        (64, 4096, 4096, 4096),
        (8, 28672, 4096, 128),
        (1, 28672, 4096, 0),
    ],
)
def test_a_budget_is_shared_in_whole_lines(mib: int, rows: int, columns: int, expected: int) -> None:
    found = span(mib * MIB, rows, columns, 2)
    assert found == expected
    assert found * rows * 2 <= mib * MIB
    assert found % 64 == 0


def of(plan: Plan, k: int = 4096, *, early: int = 0, prefetch: int = 0) -> Product:
    x, weight = (torch.empty(rows, k, dtype=BF16, device="meta") for rows in (1, 4096))
    return Product(plan, x, weight, early=early, prefetch=prefetch)


def test_programs_share_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "INTERPRETED", False)
    assert of(ROWS, early=WAITED, prefetch=8 * MIB).ahead == 1024
    assert of(TILE, early=AT_ONCE, prefetch=8 * MIB).ahead == 256  # of each part of K
    assert of(TILE, early=WAITED, prefetch=99 * MIB).ahead == 1024  # all that a part has
    assert of(ROWS, early=WAITED).ahead == 0
    assert of(ROWS, prefetch=8 * MIB).ahead == 0
    assert of(ROWS, k=4100, early=WAITED, prefetch=8 * MIB).ahead == 0  # rows at odd addresses
    assert of(replace(ROWS, block_k=4), early=WAITED, prefetch=8 * MIB).ahead == 0


def test_a_weight_at_an_odd_address_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "INTERPRETED", False)
    values = torch.empty(64 * 512 + 8, dtype=BF16)
    for offset, expected in ((0, 512), (1, 0), (8, 512)):
        weight = values[offset : offset + 64 * 512].view(64, 512)
        run = Product(ROWS, torch.empty(1, 512, dtype=BF16), weight, early=WAITED, prefetch=MIB)
        assert run.ahead == expected


@pytest.mark.skipif(not INTERPRETED, reason="Triton is compiled in this process")
def test_the_interpreter_asks_for_nothing() -> None:
    assert of(ROWS, early=WAITED, prefetch=8 * MIB).ahead == 0
    given = operands(2, 48, 96)
    asked, _ = product(Plan("rows", 8, 32), given.x, given.w, prefetch=8 * MIB)
    assert torch.equal(asked, product(Plan("rows", 8, 32), given.x, given.w)[0])


def test_options_say_how_kernels_start() -> None:
    made = TritonAttention.Config
    assert (made().prefetch_mib, made().early_trigger) == (0, False)
    assert [_early(made(), generation) for generation in (0, 8, 9, 10)] == [0, 0, WAITED, WAITED]
    assert _early(made(early_trigger=True), 9) == AT_ONCE
    assert _early(made(early_trigger=True, dependent_launch=False), 9) == 0
    assert dependent(WAITED) == {"PDL": 1, "launch_pdl": True}
    assert dependent(AT_ONCE) == {"PDL": 2, "launch_pdl": True}


@gpu
@pytest.mark.parametrize("early", [WAITED, AT_ONCE])
@pytest.mark.parametrize("plan", [ROWS, TILE, replace(TILE, merge=True), Plan("tile", 16, 128)], ids=str)
def test_requests_change_no_bit(plan: Plan, early: int) -> None:
    """Each launch reads what the one in front wrote; sizes with and without a rest."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("dependent launch needs compute capability 9")
    for size in (1024, 1544):
        weights = [operands(1, size, size, "cuda", BF16).w for _ in range(2)]
        results = []
        for level, budget in ((0, 0), (early, MIB), (early, 64 * MIB)):
            x = operands(4, size, size, "cuda", BF16).x
            for step in range(100):
                x, _ = product(plan, x, weights[step % 2], early=level, prefetch=budget)
                x = x / x.abs().amax()
            results.append(x)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
