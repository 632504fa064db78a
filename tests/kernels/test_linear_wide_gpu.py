"""Gated products of 65 to 256 tokens on a GPU: against float64 at an 8B's sizes and at odd ones, the same to
the bit every time, in graphs, and compiled before they are needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_cases import EPS, check_gated, expected, gpu, near, operands, random

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.compiled import COMPILED
from engine.kernel_choices.plans import NORM_GATED, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels.linear import product

FP16, BF16 = torch.float16, torch.bfloat16
LLAMA_8B = (28672, 4096)
BEST = {"waves": Plan("waves", 256, 64, 8, 4, gate=True), "even": Plan("even", 256, 64, 8, 4, gate=True)}
BOTH = pytest.mark.parametrize("kernel", BEST)


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("of shared memory there is too little before Hopper")


@gpu
@BOTH
def test_an_8b_s_products_of_many_tokens(kernel: str) -> None:
    """Against float64, and the same to the bit every time; as many turns as one round of programs takes."""
    given = operands(256, *LLAMA_8B, "cuda", BF16)
    target = expected(given, 0, False, True)
    for tokens in (65, 96, 128, 129, 192, 200, 256):
        turns = -(-BEST[kernel].programs(tokens, LLAMA_8B[0]) // 132) if kernel == "waves" else 1
        plan, x = replace(BEST[kernel], turns=turns), given.x[:tokens]
        runs = [product(plan, x, given.w)[0] for _ in range(3)]
        near(runs[0], target[:tokens])
        assert torch.equal(runs[0], runs[1])
        assert torch.equal(runs[0], runs[2])


@gpu
@BOTH
@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
@pytest.mark.parametrize(
    "size", [(65, 3072, 576), (130, 2064, 1544), (256, 4112, 4096), (100, 48, 72)], ids=str
)
def test_tails_of_many_tokens(
    kernel: str, stages: int, dtype: torch.dtype, size: tuple[int, int, int]
) -> None:
    """Lines, tokens and columns that fill no tile; with a bias; programs of one tile and of several."""
    for turns in (1, 3) if kernel == "waves" else (1,):
        check_gated(replace(BEST[kernel], stages=stages, turns=turns), size, True, "cuda", dtype)


@gpu
@BOTH
def test_every_number_of_tokens_from_65_to_256(kernel: str) -> None:
    given = operands(256, 1536, 512, "cuda", BF16)
    target = expected(given, 0, False, True)
    for tokens in range(65, 257):
        near(product(BEST[kernel], given.x[:tokens], given.w)[0], target[:tokens])


@gpu
@BOTH
def test_a_graph_of_many_tokens_reads_what_lies_there_now(kernel: str) -> None:
    """Between dependent launches, as in a step: the norm in front of it, and one behind that reads it."""
    n, k = 1536, 512
    ops = TritonOps(Choices({Place(NORM_GATED, "bfloat16", 128, n, k): BEST[kernel]}), early=True)
    given, linear = operands(128, n, k, "cuda", BF16), DenseLinear(operands(1, n, k, "cuda", BF16).w)
    x, weight = given.x.contiguous(), torch.ones(n // 2, dtype=BF16, device="cuda")

    def step() -> torch.Tensor:
        y, _ = ops.norm_gated(x, given.residual, given.norm, EPS, linear)
        return ops.rms_norm(y, weight, EPS)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for seed in range(5):
        drawn = random(128, k, device="cuda", dtype=BF16, seed=seed)
        x.copy_(drawn)  # which the norm writes over
        graph.replay()
        torch.cuda.synchronize()
        target = TorchOps().norm_gated(drawn, given.residual, given.norm, EPS, linear)[0]
        near(found, TorchOps().rms_norm(target, weight, EPS).double())


@gpu
@BOTH
def test_nothing_of_many_tokens_is_compiled_after_the_first_pass(kernel: str) -> None:
    """The first pass is one of few tokens, the warm-up is by descriptors of the meta device."""
    n, k = 2048 + 16, 512
    plans = {64: Plan("tile", 64, 64, gate=True)} | dict.fromkeys((96, 128, 192, 256), BEST[kernel])
    ops = TritonOps(Choices({Place(NORM_GATED, "bfloat16", t, n, k): plan for t, plan in plans.items()}))
    given = operands(256, n, k, "cuda", BF16)
    linear = DenseLinear(given.w)

    def step(tokens: int) -> None:
        x = given.x[:tokens].contiguous()
        ops.norm_gated(x, given.residual[:tokens].contiguous(), given.norm, EPS, linear)

    step(40)
    torch.cuda.synchronize()
    before = COMPILED.total
    for tokens in (65, 96, 97, 128, 129, 192, 200, 256):
        step(tokens)
    torch.cuda.synchronize()
    assert COMPILED.total == before
