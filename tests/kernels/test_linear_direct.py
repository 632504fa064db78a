"""Products whose weights go from memory into registers, against float64; they cannot be interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_cases import chained, expected, gpu, near, operands

from engine.kernel_choices.plans import DIRECT, LINEAR, NORM_GATED, TILE, Choices, Place, Plan
from kernels.linear import product

BF16 = torch.bfloat16
SHAPES = [(6144, 4096), (4096, 14336), (28672, 4096), (960, 576), (576, 1536), (49152, 576)]
PLAIN = Plan(DIRECT, 8, 256, warps=2, stages=4)
PLANS = [
    PLAIN,
    Plan(DIRECT, 16, 512, warps=4, stages=4),
    Plan(DIRECT, 8, 128, warps=1, stages=1),
    Plan(DIRECT, 32, 256, warps=2, stages=2, turns=2),
    Plan(DIRECT, 16, 1024, warps=8, stages=2, turns=3),  # x stays in registers where it fits
]


def check(plan: Plan, tokens: int, n: int, k: int, bias: bool, gate: bool, dtype: torch.dtype) -> None:
    given = operands(tokens, n, k, "cuda", dtype)
    plan = replace(plan, gate=gate, block_n=max(plan.block_n, 16) if gate else plan.block_n)
    y, stream = product(plan, given.x, given.w, given.bias if bias else None)
    again, _ = product(plan, given.x, given.w, given.bias if bias else None)
    assert stream is given.x
    assert torch.equal(y, again)
    near(y, expected(given, 0, bias, gate))


@gpu
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_real_shapes(plan: Plan, n: int, k: int) -> None:
    for tokens in (1, 5, 8):
        check(plan, tokens, n, k, bias=False, gate=False, dtype=BF16)
        check(plan, tokens, n, k, bias=True, gate=True, dtype=BF16)


@gpu
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(958, 1000), (50, 72), (34, 4104), (2, 64)])
@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_sizes_that_no_block_divides(plan: Plan, n: int, k: int, dtype: torch.dtype) -> None:
    for tokens in (3, 9, 16):
        check(plan, tokens, n, k, bias=True, gate=False, dtype=dtype)
        check(plan, tokens, n, k, bias=False, gate=True, dtype=dtype)


@gpu
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_token_does_not_depend_on_its_neighbours(plan: Plan) -> None:
    given = operands(8, 960, 576, "cuda", BF16)
    whole, _ = product(plan, given.x, given.w)
    for tokens in range(1, 8):
        assert torch.equal(product(plan, given.x[:tokens], given.w)[0], whole[:tokens])


@gpu
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_dependent_launches(plan: Plan) -> None:
    """A race would show as other bits."""

    def step(x: torch.Tensor, w: torch.Tensor, early: bool) -> torch.Tensor:
        return product(plan, x, w, early=early)[0]

    plain, dependent = chained(step, 5, every=20)
    assert plain.isfinite().all()
    assert torch.equal(plain, dependent)


@gpu
def test_a_weight_of_more_than_two_to_the_31_elements() -> None:
    n, k = (1 << 19) + 64, 4096 + 64
    w = torch.zeros(n, k, dtype=BF16, device="cuda")
    w[-1] = 1
    y, _ = product(PLAIN, torch.ones(2, k, dtype=BF16, device="cuda"), w)
    assert torch.equal(y[:, -1], torch.full((2,), float(k), dtype=BF16, device="cuda"))
    assert (y[:, :-1] == 0).all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"block_n": 4}, "takes 8 rows"),
        ({"block_n": 8, "gate": True}, "takes 16 rows"),
        ({"block_k": 128}, "128 columns a warp"),
        ({"split": 2}, "knows no split"),
        ({"swap": True}, "knows no swap"),
        ({"norm": True}, "knows no norm"),
        ({"turns": 0}, "turns=0"),
    ],
)
def test_what_it_cannot_compute(change: dict[str, int], why: str) -> None:
    place = Place(NORM_GATED, "bfloat16", 5, 960, 576)
    assert place.problem(PLAIN) == ""
    assert why in place.problem(replace(PLAIN, **change))


def test_it_multiplies_few_tokens_of_16_bit_values() -> None:
    assert "not float32" in Place(LINEAR, "float32", 5, 960, 576).problem(PLAIN)
    assert "1 to 16 tokens" in Place(LINEAR, "bfloat16", 32, 960, 576).problem(PLAIN)
    assert Place(LINEAR, "float16", 16, 960, 576).problem(PLAIN) == ""
    assert "8 inputs at a time" in Place(LINEAR, "float16", 16, 960, 580).problem(PLAIN)


PRODUCTS = [(960, 576), (576, 576)]


def choices(plans: dict[int, Plan | None], products: list[tuple[int, int]] = PRODUCTS) -> Choices:
    return Choices({Place(LINEAR, "bfloat16", t, *nk): plan for t, plan in plans.items() for nk in products})


@pytest.mark.parametrize(
    ("plans", "tokens"),
    [
        ({1: Plan("rows", 8, 64), 5: PLAIN, 8: PLAIN, 16: PLAIN}, {1, 2, 3, 4, 5}),
        ({1: Plan("rows", 8, 64), 4: PLAIN}, {1, 2, 3, 4}),
        ({1: PLAIN, 2: Plan(TILE, 16, 64), 4: PLAIN, 8: PLAIN}, {1, 3, 4, 5}),
        ({1: PLAIN, 5: None}, {1}),
        ({}, set()),
    ],
)
def test_few_tokens_are_lean_where_every_product_is(plans: dict[int, Plan | None], tokens: set[int]) -> None:
    assert choices(plans).lean("bfloat16", PRODUCTS) == tokens
    assert choices(plans).lean("float16", PRODUCTS) == set()
    assert choices(plans).lean("bfloat16", [*PRODUCTS, (64, 64)]) == set(), "a product without a plan"
    one_is_not = {Place(LINEAR, "bfloat16", 5, *PRODUCTS[0]): Plan(TILE, 16, 64)}
    mixed = Choices({Place(LINEAR, "bfloat16", 5, *PRODUCTS[1]): PLAIN, **one_is_not})
    assert mixed.lean("bfloat16", PRODUCTS) == set()
