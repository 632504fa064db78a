"""Products of few tokens, fused stages included, against float64; splits repeat to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_cases import CPU, EPS, chained, expected, gpu, near, norm_of, operands

from backends.torch_ops import TorchOps
from benchmarks.kernel_candidates import MOST_UNROLLED
from engine.kernel_choices.plans import Plan
from kernels.linear import Norm, product

ROWS = Plan("rows", 8, 32)
TILE = Plan("tile", 16, 16)
# (norm mode, gate); sizes below: even against the blocks, and not in N, in K or in both
FUSED = [(0, False), (0, True), (1, False), (2, False), (2, True)]
FP32 = torch.float32


def check(
    plan: Plan, tokens: int, n: int, k: int, mode: int, bias: bool, device: str, dtype: torch.dtype
) -> None:
    given = operands(tokens, n, k, device, dtype)
    kept = given.x.clone(), given.residual.clone()
    y, stream = product(plan, given.x, given.w, given.bias if bias else None, norm_of(given, mode))
    assert y.dtype == dtype
    near(y, expected(given, mode, bias, plan.gate))
    assert torch.equal(stream, given.x + given.residual if mode == 2 else given.x)
    assert torch.equal(given.x, kept[0])  # nothing in place: other programs may still read it
    assert torch.equal(given.residual, kept[1])


@CPU
@pytest.mark.parametrize(("mode", "gate"), FUSED)
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 64, 64), (2, 24, 40), (3, 50, 96), (4, 24, 40)])
def test_rows(tokens: int, n: int, k: int, mode: int, gate: bool) -> None:
    plan = replace(ROWS, gate=gate, norm=mode > 0, split=1 + tokens % 2)
    check(plan, tokens, n, k, mode, tokens > 2, "cpu", FP32)


@CPU
@pytest.mark.parametrize(("mode", "gate"), FUSED)
@pytest.mark.parametrize(("tokens", "n", "k"), [(2, 24, 40), (5, 48, 64), (6, 50, 96), (8, 24, 200)])
def test_rows_whose_neighbours_share_a_sum(tokens: int, n: int, k: int, mode: int, gate: bool) -> None:
    """As soon as all sums of a thread would take more than its registers: here of one warp."""
    plan = Plan("rows", 16, 64 if tokens > 2 else 128, 1, gate=gate, norm=mode > 0, split=1 + tokens % 2)
    assert tokens * plan.weights_held() > 64
    check(plan, tokens, n, k, mode, tokens > 5, "cpu", FP32)


@CPU
@pytest.mark.parametrize(("mode", "gate"), FUSED)
@pytest.mark.parametrize(("tokens", "n", "k"), [(1, 24, 40), (5, 50, 96), (16, 64, 64), (17, 50, 40)])
def test_tile(tokens: int, n: int, k: int, mode: int, gate: bool) -> None:
    plan = replace(TILE, gate=gate, norm=mode > 0, split=1 + tokens % 2, swap=tokens in (5, 17))
    check(plan, tokens, n, k, mode, tokens > 5, "cpu", FP32)


@CPU
@pytest.mark.parametrize("tokens", range(1, 18))
def test_every_number_of_tokens(tokens: int) -> None:
    check(replace(TILE, block_k=64, block_n=32), tokens, 32, 64, 0, False, "cpu", FP32)


@CPU
@pytest.mark.parametrize("plan", [ROWS, TILE], ids=lambda plan: plan.kernel)
@pytest.mark.parametrize("split", [2, 3])
def test_splits_repeat_to_the_bit(plan: Plan, split: int) -> None:
    given = operands(3, 48, 96)
    runs = [product(replace(plan, split=split), given.x, given.w, given.bias)[0] for _ in range(2)]
    assert torch.equal(*runs)
    near(runs[0], expected(given, 0, True, False))


@CPU
def test_a_stage_equals_the_separate_operations() -> None:
    """fp32: within 1e-5 of norm, product and SwiGLU one after the other."""
    ops = TorchOps()
    given = operands(4, 48, 80)
    y, stream = product(replace(ROWS, gate=True), given.x, given.w, None, norm_of(given, 2))
    normed, total = ops.add_rms_norm(given.x.clone(), given.residual, given.norm, 1e-5)
    apart = ops.silu_mul(normed @ given.w.T)
    torch.testing.assert_close(y, apart, rtol=1e-5, atol=1e-6)
    assert torch.equal(stream, total)


LLAMA_8B = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
SMOLLM2 = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
SPLIT_ROWS, SPLIT_TILE = Plan("rows", 8, 256, warps=8, split=2), Plan("tile", 64, 64, swap=True, split=2)
BF16 = torch.bfloat16


def on_a_gpu(plan: Plan, n: int, k: int, fused: tuple[int, bool], dtype: torch.dtype) -> None:
    """Of the rows kernel's sizes those that a search would compile: others take minutes."""
    mode, gate = fused
    unrolled = [tokens for tokens in (1, 3, 5, 8) if tokens * -(-k // plan.block_k) <= MOST_UNROLLED]
    for tokens in unrolled if plan.kernel == "rows" else (5, 17, 64):
        check(replace(plan, gate=gate), tokens, n, k, mode, True, "cuda", dtype)


@gpu
@pytest.mark.parametrize("plan", [Plan("rows", 4, 1024, warps=8), Plan("tile", 64, 64, swap=True)], ids=str)
@pytest.mark.parametrize(("n", "k"), LLAMA_8B + SMOLLM2)
def test_real_shapes(plan: Plan, n: int, k: int) -> None:
    for fused in ((0, False), (2, True)):
        on_a_gpu(plan, n, k, fused, BF16)


@gpu
@pytest.mark.parametrize("plan", [SPLIT_ROWS, SPLIT_TILE, Plan("tile", 32, 64)], ids=str)
@pytest.mark.parametrize("dtype", [BF16, torch.float16, FP32], ids=str)
@pytest.mark.parametrize("fused", FUSED)
def test_every_variant_on_a_gpu(plan: Plan, dtype: torch.dtype, fused: tuple[int, bool]) -> None:
    on_a_gpu(replace(plan, block_k=min(plan.block_k, 128 // dtype.itemsize)), 960, 576, fused, dtype)


@gpu
@pytest.mark.parametrize("plan", [SPLIT_ROWS, SPLIT_TILE], ids=str)
def test_dependent_launches(plan: Plan) -> None:
    """A race would show as other bits."""

    def step(x: torch.Tensor, w: torch.Tensor, early: bool) -> torch.Tensor:
        return product(plan, x, w, None, Norm(torch.ones_like(x[0]), EPS), early=early)[0]

    assert torch.equal(*chained(step, 4))


@gpu
@pytest.mark.parametrize("kernel", ["rows", "tile"])
def test_a_weight_of_more_than_two_to_the_31_elements(kernel: str) -> None:
    n, k = (1 << 19) + 64, 4096 + 64
    w = torch.zeros(n, k, dtype=torch.bfloat16, device="cuda")
    w[-1] = 1
    x = torch.ones(2, k, dtype=torch.bfloat16, device="cuda")
    y, _ = product(Plan(kernel, 16, 128), x, w)
    assert torch.equal(y[:, -1], torch.full((2,), float(k), dtype=torch.bfloat16, device="cuda"))
    assert (y[:, :-1] == 0).all()
