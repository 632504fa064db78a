"""Products of 129 to 256 tokens by halves on a GPU: against float64 at an 8B's sizes and at odd ones, the
same to the bit every time, in graphs, with nothing of what lies around x and the results, and loaded before
they are needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from linear_cases import EPS, Operands, expected, gpu, near, operands, random
from torch import Tensor

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.compiled import COMPILED
from engine.kernel_choices.plans import LINEAR, NORM_LINEAR, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels.cuda.available import why_not
from kernels.linear import product
from kernels.linear_halves import _kernel, halves

FP16, BF16 = torch.float16, torch.bfloat16
DOWN = (4096, 14336)  # of an 8B
HALVES = Plan("halves", 128, 64, 8, 6)
TOKENS = (129, 130, 200, 255, 256)
# N, K: blocks of lines that end in either half; columns that fill no step, an odd number of steps, a half
# without any; less of everything than a box.
SIZES = [DOWN, (4096, 4096), (6144, 4096), (1000, 520), (136, 72), (320, 200), (64, 2888), (128, 64), (8, 8)]
ODD = [(1000, 520), (136, 72), (320, 200), (8, 8)]
DTYPES = pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)


@pytest.fixture(autouse=True)
def _usable() -> None:
    if torch.cuda.is_available() and why_not():
        pytest.skip(why_not())


def rounded_once(out: Tensor, target: Tensor) -> None:
    """Off by half of the last place, and by what sums of fp32 lose."""
    torch.testing.assert_close(out.double(), target, rtol=torch.finfo(out.dtype).eps / 2, atol=2e-3)


@gpu
@DTYPES
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_of_129_to_256_tokens(size: tuple[int, int], bias: bool, dtype: torch.dtype) -> None:
    """Against float64; rows of x lie further apart than they are long; the same to the bit every time."""
    given = operands(256, *size, "cuda", dtype)
    kept, target = given.x.clone(), expected(given, 0, bias, False)
    for tokens in TOKENS:
        runs = [product(HALVES, given.x[:tokens], given.w, given.bias if bias else None)[0] for _ in range(3)]
        assert (runs[0].shape, runs[0].dtype) == ((tokens, size[0]), dtype)
        rounded_once(runs[0], target[:tokens])
        assert torch.equal(runs[0], runs[1])
        assert torch.equal(runs[0], runs[2])
    assert torch.equal(given.x, kept)


@gpu
@DTYPES
@pytest.mark.parametrize("stages", [2, 3, 4, 5, 6])
def test_every_number_of_stages(stages: int, dtype: torch.dtype) -> None:
    """All sum in the same order."""
    for tokens, n, k in ((200, 1000, 520), (256, 576, 1536), (129, 136, 72)):
        given = operands(tokens, n, k, "cuda", dtype)
        y = product(Plan("halves", 128, 64, 8, stages), given.x, given.w, given.bias)[0]
        rounded_once(y, expected(given, 0, True, False))
        assert torch.equal(y, product(HALVES, given.x, given.w, given.bias)[0])


@gpu
def test_every_number_of_tokens_from_129_to_256() -> None:
    """A token's results do not depend on how many others there are."""
    given = operands(256, 1536, 512, "cuda", BF16)
    rounded_once(whole := product(HALVES, given.x, given.w)[0], expected(given, 0, False, False))
    for tokens in range(129, 256):
        assert torch.equal(product(HALVES, given.x[:tokens], given.w)[0], whole[:tokens]), tokens


@gpu
@DTYPES
@pytest.mark.parametrize("at", [0, 5, 8], ids=lambda at: f"{at} of 9 steps")
def test_each_half_of_k_counts_once(at: int, dtype: torch.dtype) -> None:
    """Whole numbers, so that sums are exact; one step of K alone is not zero: of 9, the first half has 5."""
    k = 9 * 64 - 8
    x, w = (torch.zeros(rows, k, device="cuda", dtype=dtype) for rows in (200, 264))
    columns = slice(at * 64, min(at * 64 + 64, k))
    for matrix, seed in ((x, 0), (w, 1)):
        drawn = random(matrix.shape[0], columns.stop - columns.start, seed=seed)
        matrix[:, columns] = drawn.clamp(-2, 2).round().to("cuda", dtype)
    sums = x.double() @ w.double().T
    assert bool((sums != 0).any())
    assert torch.equal(product(HALVES, x, w)[0], sums.to(dtype))


@gpu
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", ODD, ids=str)
def test_nothing_around_x_is_read(size: tuple[int, int], tokens: int, dtype: torch.dtype) -> None:
    """Behind its columns and behind its last token is what is no number."""
    given, k = operands(tokens, *size, "cuda", dtype), size[1]
    around = torch.full((tokens + 140, k + 24), float("nan"), device="cuda", dtype=dtype)
    around[:tokens, :k] = given.x
    rounded_once(product(HALVES, around[:tokens, :k], given.w)[0], expected(given, 0, False, False))


@gpu
@DTYPES
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", ODD, ids=str)
def test_nothing_around_the_results_is_written(
    size: tuple[int, int], tokens: int, dtype: torch.dtype
) -> None:
    """Nor is anything around W and the bias read."""
    given, n = operands(tokens, *size, "cuda", dtype), size[0]
    room = torch.full((tokens + 400, n), 7.5, device="cuda", dtype=dtype)
    weights = torch.full((n + 256, size[1]), float("nan"), device="cuda", dtype=dtype)
    biases = torch.full((n + 256,), float("nan"), device="cuda", dtype=dtype)
    weights[:n], biases[:n] = given.w, given.bias
    out = room[200 : 200 + tokens]
    halves(HALVES, given.x, weights[:n], biases[:n], out)
    rounded_once(out, expected(given, 0, True, False))
    assert bool((room[:200] == 7.5).all())
    assert bool((room[200 + tokens :] == 7.5).all())


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
    n, k = 1536, 520
    place = Place(NORM_LINEAR, "bfloat16", 192 if tokens <= 192 else 256, n, k)
    ops = TritonOps(Choices({place: HALVES}), early=True)
    given, linear = operands(tokens, n, k, "cuda", BF16), DenseLinear(operands(1, n, k, "cuda", BF16).w)
    x, weight = given.x.contiguous(), torch.ones(n, dtype=BF16, device="cuda")

    def step() -> Tensor:
        y, _ = ops.norm_linear(x, given.residual, given.norm, EPS, linear)
        return ops.rms_norm(y, weight, EPS)

    graph, found = captured(step)
    for seed in range(5):
        drawn = random(tokens, k, device="cuda", dtype=BF16, seed=seed)
        x.copy_(drawn)  # which the norm may write over
        graph.replay()
        torch.cuda.synchronize()
        target = TorchOps().norm_linear(drawn, given.residual.clone(), given.norm, EPS, linear)[0]
        near(found, TorchOps().rms_norm(target, weight, EPS).double())


@gpu
def test_many_in_a_graph_equal_one_alone() -> None:
    """Launched one right after the other: no block of one meets what another left in shared memory."""
    given = operands(256, *DOWN, "cuda", BF16)
    alone = product(HALVES, given.x, given.w)[0]
    graph, found = captured(lambda: torch.stack([product(HALVES, given.x, given.w)[0] for _ in range(30)]))
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert bool((found == alone).all())


@gpu
def test_two_streams_at_once() -> None:
    """Clusters of two launches share the processors."""
    givens: list[Operands] = [operands(tokens, 1000, 2888, "cuda", BF16) for tokens in (256, 130)]
    streams = [torch.cuda.Stream() for _ in givens]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for _ in range(20):
        for given, stream, kept in zip(givens, streams, found, strict=True):
            with torch.cuda.stream(stream):
                kept.append(product(HALVES, given.x, given.w)[0])
    torch.cuda.synchronize()
    for given, kept in zip(givens, found, strict=True):
        rounded_once(kept[0], expected(given, 0, False, False))
        assert all(torch.equal(kept[0], other) for other in kept)


@gpu
def test_nothing_is_compiled_after_the_first_pass() -> None:
    """The first pass is one of few tokens; with it the kernel is compiled and loaded for the larger ones."""
    _kernel.cache_clear()
    n, k = 2064, 512
    plans = {64: Plan("tile", 64, 64)} | dict.fromkeys((192, 256), HALVES)
    ops = TritonOps(Choices({Place(LINEAR, "bfloat16", t, n, k): plan for t, plan in plans.items()}))
    given = operands(256, n, k, "cuda", BF16)
    linear = DenseLinear(given.w, given.bias)

    def step(tokens: int) -> None:
        ops.linear(given.x[:tokens].contiguous(), linear)

    step(40)
    step(100)  # torch's product
    torch.cuda.synchronize()
    before = COMPILED.total
    for tokens in TOKENS:
        step(tokens)
    torch.cuda.synchronize()
    assert COMPILED.total == before
