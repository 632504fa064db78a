"""Products, norms and SwiGLU in float64, and operands for them: what the product kernels are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.kernel_choices.plans import Plan
from kernels.linear import Norm, product

CUDA = torch.cuda.is_available()
CPU = pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")


def gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test for a CUDA device."""
    return pytest.mark.gpu(pytest.mark.skipif(not CUDA, reason="no CUDA device")(test))


EPS = 1e-5
# Relative to the size of the sums: a product of K terms errs with sqrt(K).
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random(*shape: int, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@dataclass(frozen=True)
class Operands:
    """x [T, K], w [N, K], bias [N], residual [T, K], norm [K]; w such that results are about 1."""

    x: Tensor
    w: Tensor
    bias: Tensor
    residual: Tensor
    norm: Tensor


def operands(
    tokens: int, n: int, k: int, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Operands:
    """x is a view: its rows lie further apart than they are long."""
    x = random(tokens, k + 16, device=device, dtype=dtype)[:, :k]
    w = (random(n, k, device=device, seed=1) / k**0.5).to(dtype)
    bias, residual, norm = (
        random(*shape, device=device, dtype=dtype, seed=seed)
        for seed, shape in enumerate(((n,), (tokens, k), (k,)), 2)
    )
    return Operands(x, w, bias, residual, norm)


def norm_of(given: Operands, mode: int) -> Norm | None:
    """0: none; 1: of x; 2: of x + residual."""
    return None if mode == 0 else Norm(given.norm, EPS, given.residual if mode == 2 else None)


def expected(given: Operands, mode: int, bias: bool, gate: bool) -> Tensor:
    """The result in float64; the sum x + residual is rounded, as it is kept in the model's precision."""
    x = ((given.x + given.residual) if mode == 2 else given.x).double()
    if mode:
        x = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * given.norm.double()
    y = x @ given.w.double().T + (given.bias.double() if bias else 0)
    if not gate:
        return y
    first, second = y.chunk(2, -1)
    return torch.nn.functional.silu(first) * second


def near(out: Tensor, target: Tensor) -> None:
    limit = TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), target, rtol=limit, atol=4 * limit)


def check_gated(
    plan: Plan,
    size: tuple[int, int, int],
    bias: bool,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> None:
    """A gated plan without norm, of size (T, N, K), against float64; its input stays as it is."""
    tokens, n, k = size
    given = operands(tokens, n, k, device, dtype)
    kept = given.x.clone()
    y, stream = product(plan, given.x, given.w, given.bias if bias else None)
    assert (y.dtype, y.shape) == (dtype, (tokens, n // 2))
    near(y, expected(given, 0, bias, True))
    assert stream is given.x
    assert torch.equal(given.x, kept)


def chained(step: Callable[[Tensor, Tensor, bool], Tensor], tokens: int, every: int = 0) -> list[Tensor]:
    """What 200 products leave, each of which reads what the kernel in front wrote: launched one after the
    other, then dependently. step: (x [T, 576], w [576, 576], dependently) -> the next x. every: steps after
    which x is divided by its largest value; 0: never."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("dependent launch needs compute capability 9")
    weights = [operands(1, 576, 576, "cuda", torch.bfloat16).w for _ in range(2)]
    results = []
    for early in (False, True):
        x = operands(tokens, 576, 576, "cuda", torch.bfloat16).x
        for number in range(200):
            x = step(x, weights[number % 2], early)
            x = x / x.abs().amax() if every and number % every == every - 1 else x
        results.append(x)
    return results
