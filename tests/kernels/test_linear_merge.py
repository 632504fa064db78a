"""Splits that the last program of a block adds: to the bit what the second kernel makes, counters at zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_cases import CPU, expected, gpu, near, norm_of, operands

from backends.triton_ops import TritonOps
from engine.kernel_choices.plans import LINEAR, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels.launch import WAITED
from kernels.linear import product

ROWS, TILE = Plan("rows", 8, 32, split=2), Plan("tile", 16, 16, split=3)
FP32, BF16 = torch.float32, torch.bfloat16


def check(
    plan: Plan, sizes: tuple[int, int, int], mode: int, bias: bool, device: str, dtype: torch.dtype
) -> None:
    """Several launches on the same counters, which are more than it needs."""
    tokens, n, k = sizes
    given = operands(tokens, n, k, device, dtype)
    counters = torch.zeros(-(-n // plan.block_n) + 3, dtype=torch.int32, device=device)
    norm, added = norm_of(given, mode), given.bias if bias else None
    apart, stream = product(plan, given.x, given.w, added, norm)
    near(apart, expected(given, mode, bias, plan.gate))
    merging = replace(plan, merge=True)
    for _ in range(2):
        merged, kept = product(merging, given.x, given.w, added, norm, counters=counters)
        assert torch.equal(merged, apart)
        assert torch.equal(kept, stream)
        assert not counters.any()


@CPU
@pytest.mark.parametrize("tokens", range(1, 9))
@pytest.mark.parametrize("plan", [ROWS, TILE, replace(TILE, swap=True, split=2)], ids=str)
def test_a_merge_makes_the_same_bits(plan: Plan, tokens: int) -> None:
    check(plan, (tokens, 40, 64), 0, tokens % 2 == 0, "cpu", FP32)


@CPU
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize(("n", "k"), [(24, 40), (34, 72)])
@pytest.mark.parametrize("plan", [ROWS, TILE], ids=str)
def test_fused_stages_of_odd_sizes(plan: Plan, n: int, k: int, gate: bool, mode: int) -> None:
    for tokens in (1, 4) if plan.kernel == "rows" else (3, 17):
        check(replace(plan, gate=gate, norm=mode > 0), (tokens, n, k), mode, n > 30, "cpu", FP32)


@CPU
def test_without_counters_there_are_new_ones() -> None:
    given = operands(3, 48, 96)
    merged, _ = product(replace(ROWS, merge=True), given.x, given.w)
    assert torch.equal(merged, product(ROWS, given.x, given.w)[0])


@CPU
def test_operations_keep_counters_for_the_plan_with_most_blocks() -> None:
    wide, tall = replace(ROWS, merge=True), replace(TILE, merge=True)
    places = {
        Place(LINEAR, "float32", 1, 50, 96): wide,
        Place(LINEAR, "float32", 4, 50, 96): tall,
        Place(LINEAR, "float32", 4, 4096, 96): TILE,
    }
    choices = Choices(places)
    assert choices.merging_blocks() == 7
    assert (
        Choices({}).merging_blocks()
        == Choices({Place(LINEAR, "float32", 1, 50, 96): ROWS}).merging_blocks()
        == 0
    )
    ops, plain = (
        TritonOps(choices),
        TritonOps(Choices({p: replace(q, merge=False) for p, q in places.items()})),
    )
    counters = ops._products._counters
    for tokens in (1, 4, 1):
        given = operands(tokens, 50, 96)
        linear = DenseLinear(given.w, given.bias)
        assert torch.equal(ops.linear(given.x, linear), plain.linear(given.x, linear))
        assert counters.shape == (7,)
        assert not counters.any()


@pytest.mark.parametrize("kernel", ["rows", "tile"])
def test_one_part_leaves_nothing_to_merge(kernel: str) -> None:
    assert "split=1 leaves none" in Plan(kernel, 16, 16, merge=True).problem(1, 64, 64)
    assert not Plan(kernel, 16, 16, split=2, merge=True).problem(1, 64, 64)


@gpu
@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 8])
@pytest.mark.parametrize(
    "plan",
    [
        Plan("rows", 4, 512, 4, split=4),
        Plan("tile", 64, 64, 2, 6, split=4),
        Plan("tile", 64, 128, 4, 6, split=2, swap=True),
    ],
    ids=str,
)
def test_a_merge_on_a_gpu(plan: Plan, tokens: int, gate: bool) -> None:
    for n, k in ((4096, 4096), (960, 576)):
        check(replace(plan, gate=gate), (tokens, n, k), 0, gate, "cuda", BF16)


@gpu
@pytest.mark.parametrize("early", [0, WAITED, 2])
def test_counters_serve_a_chain_of_launches(early: int) -> None:
    """Each launch reads what the one in front wrote and counts where it counted."""
    if early and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("dependent launch needs compute capability 9")
    plan = Plan("tile", 64, 64, 4, 3, split=4)
    weights = [operands(1, 1024, 1024, "cuda", BF16).w for _ in range(2)]
    counters = torch.zeros(16, dtype=torch.int32, device="cuda")
    results = []
    for merge in (False, True):
        x = operands(4, 1024, 1024, "cuda", BF16).x
        for step in range(200):
            chosen = replace(plan, merge=merge)
            x, _ = product(chosen, x, weights[step % 2], early=early * merge, counters=counters)
            x = x / x.abs().amax()
        results.append(x)
    assert torch.equal(*results)
    assert not counters.any()
