"""Gated products of 129 to 256 tokens in CUDA C++ on a GPU: against float64 at an 8B's sizes and at odd ones,
the same to the bit every time, in graphs, with nothing of what lies around x and the results, and loaded
before they are needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from linear_cases import EPS, Operands, check_gated, expected, gpu, near, operands, random
from torch import Tensor

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.compiled import COMPILED
from engine.kernel_choices.plans import NORM_GATED, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels.cuda.available import why_not
from kernels.linear import product
from kernels.linear_pair import _kernel, pair

FP16, BF16 = torch.float16, torch.bfloat16
LLAMA_8B = (28672, 4096)
PAIR = Plan("pair", 256, 64, 8, 3, gate=True)
EVEN = Plan("even", 256, 64, 8, 4, gate=True)
TOKENS = (129, 130, 200, 255, 256)
# N, K: shares that end within, at the gate's last line, or that hold all there is; columns that fill
# no step, and fewer steps than stages; less of everything than a box.
SIZES = [LLAMA_8B, (2000, 520), (3072, 576), (448, 64), (464, 72), (704, 4096), (240, 200), (16, 8)]
DTYPES = pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)


@pytest.fixture(autouse=True)
def _usable() -> None:
    if torch.cuda.is_available() and why_not():
        pytest.skip(why_not())


@gpu
@DTYPES
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_of_129_to_256_tokens(size: tuple[int, int], bias: bool, dtype: torch.dtype) -> None:
    """Against float64; rows of x lie further apart than they are long; the same to the bit every time."""
    given = operands(256, *size, "cuda", dtype)
    target = expected(given, 0, bias, True)
    for tokens in TOKENS:
        runs = [product(PAIR, given.x[:tokens], given.w, given.bias if bias else None)[0] for _ in range(3)]
        assert (runs[0].shape, runs[0].dtype) == ((tokens, size[0] // 2), dtype)
        near(runs[0], target[:tokens])
        assert torch.equal(runs[0], runs[1])
        assert torch.equal(runs[0], runs[2])


@gpu
@DTYPES
@pytest.mark.parametrize("stages", [2, 3])
def test_every_number_of_stages(stages: int, dtype: torch.dtype) -> None:
    for size in ((200, 2000, 520), (256, 3072, 576), (129, 464, 72)):
        plan = Plan("pair", 256, 64, 8, stages, gate=True)
        check_gated(plan, size, True, "cuda", dtype)


@gpu
def test_every_number_of_tokens_from_129_to_256() -> None:
    given = operands(256, 1536, 512, "cuda", BF16)
    target = expected(given, 0, False, True)
    for tokens in range(129, 257):
        near(product(PAIR, given.x[:tokens], given.w)[0], target[:tokens])


@gpu
@DTYPES
def test_values_are_rounded_where_triton_s_kernel_rounds_them(dtype: torch.dtype) -> None:
    """The sums differ in their order alone, and few of the results by a bit."""
    given = operands(256, *LLAMA_8B, "cuda", dtype)
    ours, other = (product(plan, given.x, given.w, given.bias)[0] for plan in (PAIR, EVEN))
    same = (ours == other).double().mean().item()
    assert same > 0.95
    near(ours, other.double())


def surrounded(given: Operands, tokens: int) -> Operands:
    """x in the middle of what is no number: behind its columns and behind its last token."""
    k = given.x.shape[1]
    around = torch.full((tokens + 40, k + 24), float("nan"), device="cuda", dtype=given.x.dtype)
    around[:tokens, :k] = given.x[:tokens]
    return Operands(around[:tokens, :k], given.w, given.bias, given.residual, given.norm)


@gpu
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", [(3072, 576), (2000, 520)], ids=str)
def test_nothing_around_x_is_read(size: tuple[int, int], tokens: int, dtype: torch.dtype) -> None:
    given = surrounded(operands(tokens, *size, "cuda", dtype), tokens)
    near(product(PAIR, given.x, given.w)[0], expected(given, 0, False, True))


@gpu
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", [(2000, 520), (464, 72), (3072, 576)], ids=str)
def test_nothing_around_the_results_is_written(
    size: tuple[int, int], tokens: int, dtype: torch.dtype
) -> None:
    given, half = operands(tokens, *size, "cuda", dtype), size[0] // 2
    room = torch.full((tokens + 200, half), 7.5, device="cuda", dtype=dtype)
    out = room[64 : 64 + tokens]
    pair(PAIR, given.x, given.w, None, out)
    near(out, expected(given, 0, False, True))
    assert bool((room[:64] == 7.5).all())
    assert bool((room[64 + tokens :] == 7.5).all())


@gpu
def test_lines_of_up_that_are_read_with_the_gate_s_are_stored_nowhere() -> None:
    """The last share's gate has lines of up behind it: what is no number there stays there."""
    given = operands(200, 2000, 520, "cuda", BF16)
    given.w[1000:1030] = float("nan")
    y = product(PAIR, given.x, given.w)[0]
    assert bool(y[:, :30].isnan().all())
    near(y[:, 30:], expected(given, 0, False, True)[:, 30:])


def captured(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


@gpu
@pytest.mark.parametrize("tokens", [129, 192, 256])
def test_a_graph_reads_what_lies_there_now(tokens: int) -> None:
    """Between dependent launches, as in a step: the norm in front of it, and one behind that reads it."""
    n, k = 1536, 512
    bucket = 192 if tokens <= 192 else 256
    ops = TritonOps(Choices({Place(NORM_GATED, "bfloat16", bucket, n, k): PAIR}), early=True)
    given, linear = operands(tokens, n, k, "cuda", BF16), DenseLinear(operands(1, n, k, "cuda", BF16).w)
    x, weight = given.x.contiguous(), torch.ones(n // 2, dtype=BF16, device="cuda")

    def step() -> Tensor:
        y, _ = ops.norm_gated(x, given.residual, given.norm, EPS, linear)
        return ops.rms_norm(y, weight, EPS)

    graph, found = captured(step)
    for seed in range(5):
        drawn = random(tokens, k, device="cuda", dtype=BF16, seed=seed)
        x.copy_(drawn)  # which the norm writes over
        graph.replay()
        torch.cuda.synchronize()
        target = TorchOps().norm_gated(drawn, given.residual, given.norm, EPS, linear)[0]
        near(found, TorchOps().rms_norm(target, weight, EPS).double())


@gpu
def test_many_in_a_graph_equal_one_alone() -> None:
    """Launched one right after the other: no share of one meets what another left in shared memory."""
    given = operands(256, *LLAMA_8B, "cuda", BF16)
    alone = product(PAIR, given.x, given.w)[0]
    graph, found = captured(lambda: torch.stack([product(PAIR, given.x, given.w)[0] for _ in range(30)]))
    graph.replay()
    torch.cuda.synchronize()
    assert bool((found == alone).all())


@gpu
def test_two_streams_at_once() -> None:
    """Clusters of two launches share the processors."""
    givens = [operands(tokens, 3072, 576, "cuda", BF16) for tokens in (256, 130)]
    streams = [torch.cuda.Stream() for _ in givens]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for _ in range(20):
        for given, stream, kept in zip(givens, streams, found, strict=True):
            with torch.cuda.stream(stream):
                kept.append(product(PAIR, given.x, given.w)[0])
    torch.cuda.synchronize()
    for given, kept in zip(givens, found, strict=True):
        near(kept[0], expected(given, 0, False, True))
        assert all(torch.equal(kept[0], other) for other in kept)


@gpu
def test_nothing_is_compiled_after_the_first_pass() -> None:
    """The first pass is one of few tokens; with it the kernel is compiled and loaded for the larger ones."""
    _kernel.cache_clear()
    n, k = 2064, 512
    plans = {64: Plan("tile", 64, 64, gate=True)} | dict.fromkeys((192, 256), PAIR)
    ops = TritonOps(Choices({Place(NORM_GATED, "bfloat16", t, n, k): plan for t, plan in plans.items()}))
    given = operands(256, n, k, "cuda", BF16)
    linear = DenseLinear(given.w)

    def step(tokens: int) -> None:
        x = given.x[:tokens].contiguous()
        ops.norm_gated(x, given.residual[:tokens].contiguous(), given.norm, EPS, linear)

    step(40)
    step(100)  # torch's product, and separate operations
    torch.cuda.synchronize()
    before = COMPILED.total
    for tokens in TOKENS:
        step(tokens)
    torch.cuda.synchronize()
    assert COMPILED.total == before
