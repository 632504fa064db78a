"""The first pass compiles the products of every number of tokens, so that no later one has to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from linear_cases import CPU, EPS, gpu, operands, random

from backends.triton_ops import TritonOps
from engine.compiled import COMPILED
from engine.errors import UserError
from engine.kernel_choices.plans import BUCKETS, LINEAR, NORM_GATED, NORM_LINEAR, Choices, Place, Plan
from engine.models.linear import DenseLinear
from kernels.linear import Norm, start

N, K = 48, 40
ROWS = Plan("rows", 8, 32)


@CPU
def test_what_is_met_is_compiled_for_every_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a step of another size finds its kernels: the first pass, at start, has met them all."""
    made: list[tuple[bool, int, int | None]] = []

    def noted(
        plan: Plan, x: torch.Tensor, weight: torch.Tensor, bias: object, norm: Norm | None, **named: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = None if norm is None else 1 if norm.residual is None else 2
        if norm is not None and norm.residual is not None:
            assert norm.residual.is_meta == x.is_meta
        made.append((x.is_meta, x.shape[0], kind))
        return x.new_zeros(x.shape[0], N), x

    monkeypatch.setattr("backends.triton_products.product", noted)
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    plans = {1: ROWS, 4: replace(ROWS, norm=True), 8: Plan("tile", 16, 16, norm=True)}
    ops = TritonOps(Choices({Place(NORM_LINEAR, "float32", t, N, K): plan for t, plan in plans.items()}))
    given, linear = operands(6, N, K), DenseLinear(random(N, K))
    x = given.x.contiguous()
    for _ in range(2):
        ops.norm_linear(x.clone(), given.residual, given.norm, EPS, linear)
    assert made == [
        (True, 1, None),
        *((True, t, 2) for t in (2, 3, 4, 5, 6, 8)),
        (False, 6, 2),
        (False, 6, 2),
    ]
    made.clear()
    ops.norm_linear(x[:4], None, given.norm, EPS, linear)  # another kernel: nothing is added
    ops.norm_linear(x[:4], None, given.norm, EPS, DenseLinear(random(N, K, seed=5)))
    assert made == [
        (True, 1, None),
        *((True, t, 1) for t in (2, 3, 4, 5, 6, 8)),
        (False, 4, 1),
        (False, 4, 1),
    ]


@CPU
def test_a_first_pass_of_another_number_of_tokens_compiles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may have plans for many tokens alone, and the engine starts with few."""
    made: list[tuple[bool, int]] = []

    def noted(
        plan: Plan, x: torch.Tensor, *rest: object, **named: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made.append((x.is_meta, x.shape[0]))
        return x.new_zeros(x.shape[0], N), x

    monkeypatch.setattr("backends.triton_products.product", noted)
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    waves = Plan("waves", 256, 64, 8, gate=True)
    ops = TritonOps(Choices({Place(NORM_GATED, "float32", t, N, K): waves for t in (96, 256)}))
    given, linear = operands(3, N, K), DenseLinear(random(N, K))
    for _ in range(2):
        ops.norm_gated(given.x.contiguous(), given.residual.clone(), given.norm, EPS, linear)
    assert made == [(True, 96), (True, 256)]


@CPU
def test_a_plan_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table may be edited, or of another version of Triton."""

    def product(plan: Plan, *operands: object, **named: object) -> None:
        raise RuntimeError("out of resource: shared memory\nat 7:12")

    monkeypatch.setattr("backends.triton_products.product", product)
    monkeypatch.setattr("backends.triton_products.INTERPRETED", False)
    ops = TritonOps(Choices({Place(LINEAR, "float32", 4, N, K): ROWS}))
    said = (
        r"plan for linear float32, 2 tokens, 48 x 40, .*block_n=8.*RuntimeError: out of resource: shared "
        r"memory\); .*tune_kernels.*kernels=torch"
    )
    with pytest.raises(UserError, match=said):
        ops.linear(random(3, K), DenseLinear(random(N, K)))


def test_a_launch_on_the_meta_device_compiles_alone() -> None:
    class Kernel:
        def __init__(self) -> None:
            self.calls: list[tuple[object, ...]] = []

        def warmup(self, *operands: object, **constants: object) -> None:
            self.calls.append(("compiled", operands, constants))

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *operands, **constants: self.calls.append((grid, operands, constants))

    kernel, real = Kernel(), torch.zeros(2, dtype=torch.float16)
    start(kernel, (3,), real, 5, N=7)
    start(kernel, (3,), real, torch.zeros(2, device="meta"), 5, N=7)
    assert kernel.calls == [
        ((3,), (real, 5), {"N": 7}),
        ("compiled", (torch.float16, torch.float32, 5), {"N": 7, "grid": (3,)}),
    ]


@gpu
def test_no_kernel_is_compiled_after_the_first_pass() -> None:
    n, k = 3072, 576
    few = [tokens for tokens in BUCKETS if tokens <= 64]
    plans = {t: Plan("rows", 8, 256, gate=t > 4) if t <= 8 else Plan("tile", 64, 64, gate=True) for t in few}
    places = {Place(NORM_GATED, "bfloat16", t, n, k): replace(plan, norm=True) for t, plan in plans.items()}
    ops = TritonOps(Choices(places), early=torch.cuda.get_device_capability()[0] >= 9)
    linear = DenseLinear(random(n, k, device="cuda", dtype=torch.bfloat16))
    norm = random(k, device="cuda", dtype=torch.bfloat16)

    def step(tokens: int) -> None:
        x, residual = (random(tokens, k, device="cuda", dtype=torch.bfloat16, seed=s) for s in (0, 1))
        ops.norm_gated(x, residual, norm, EPS, linear)

    step(5)
    step(3)  # without its gate in the plan: SwiGLU alone
    torch.cuda.synchronize()
    before = COMPILED.total
    for tokens in range(1, 65):
        step(tokens)
    torch.cuda.synchronize()
    assert COMPILED.total == before
