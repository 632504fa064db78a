"""Stages of a layer by plan equal the separate operations; what has no plan is computed by those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from linear_cases import CPU, EPS, gpu, operands, random

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.kernel_choices.plans import (
    BEST,
    BUCKETS,
    LINEAR,
    NORM_GATED,
    NORM_LINEAR,
    Choices,
    Place,
    Plan,
    bucket_of,
)
from engine.models.linear import DenseLinear, Linear
from kernels.linear import Norm, start
from speculative.eagle3.shortlist import DenseBest

N, K = 48, 40
ROWS = Plan("rows", 8, 32)
FUSED = Plan("rows", 8, 32, norm=True, gate=True)
TILE = Plan("tile", 16, 16, gate=True)


class NoMatrix(Linear):
    """A map whose weights no kernel can read."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def nbytes(self) -> int:
        return 0


def ops_with(plan: Plan, tokens: int, stages: tuple[str, ...]) -> TritonOps:
    bucket = bucket_of(tokens)
    assert bucket is not None
    return TritonOps(Choices({Place(stage, "float32", bucket, N, K): plan for stage in stages}))


@CPU
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("plan", "tokens"),
    [(ROWS, 1), (FUSED, 3), (TILE, 5), (TILE, 2), (replace(FUSED, split=2), 6), (replace(TILE, split=3), 4)],
)
def test_stages_equal_the_separate_operations(plan: Plan, tokens: int, bias: bool) -> None:
    given = operands(tokens, N, K)
    linear = DenseLinear(given.w, given.bias if bias else None)
    plain = TorchOps()
    gated = ops_with(plan, tokens, (NORM_GATED,))
    straight = ops_with(replace(plan, gate=False), tokens, (NORM_LINEAR,))
    residuals = {"norm_linear": (None, given.residual), "norm_gated": (given.residual,)}
    for name, choices in residuals.items():
        for residual in choices:
            kept = None if residual is None else residual.clone()
            x = given.x.contiguous()
            expected = getattr(plain, name)(x.clone(), residual, given.norm, EPS, linear)
            ours = gated if name == "norm_gated" else straight
            found = getattr(ours, name)(x.clone(), residual, given.norm, EPS, linear)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)
            assert kept is None or torch.equal(residual, kept)
    torch.testing.assert_close(
        ops_with(ROWS if tokens < 5 else Plan("tile", 16, 16), tokens, (LINEAR,)).linear(given.x, linear),
        linear(given.x), rtol=1e-5, atol=2e-6,
    )  # fmt: skip


@CPU
def test_the_stream_without_a_residual_stays_as_it_is() -> None:
    """Before the first layer: the embedding becomes the residual."""
    x, norm = random(2, K), random(K, seed=1)
    for ops in (TorchOps(), ops_with(ROWS, 2, (NORM_LINEAR,)), ops_with(FUSED, 2, (NORM_LINEAR,))):
        given = x.clone()
        _, stream = ops.norm_linear(given, None, norm, EPS, DenseLinear(random(N, K, seed=2)))
        assert torch.equal(stream, x)
        assert torch.equal(given, x)


@CPU
@pytest.mark.parametrize("tokens", [2, 5])
def test_scores_are_the_product_as_it_is(tokens: int) -> None:
    """No pass of its own casts them; who computes with them does."""
    given = operands(tokens, N, K)
    linear = DenseLinear(given.w)
    ours = ops_with(Plan("tile", 16, 16, split=2), tokens, (LINEAR,))
    assert torch.equal(ours.scores(given.x, linear), ours.linear(given.x, linear))
    x, half = given.x.bfloat16(), DenseLinear(given.w.bfloat16())
    found = ops_with(Plan("tile", 16, 16), tokens, ()).scores(x, half)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, half(x))
    assert torch.equal(TorchOps().scores(x, half), found.float())


@CPU
def test_plans_are_used_where_they_apply_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def counted(
        plan: Plan, x: torch.Tensor, *rest: object, **named: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        used.append(x.shape[0])
        return x.new_zeros(x.shape[0], N), x

    monkeypatch.setattr("backends.triton_products.product", counted)
    ops = ops_with(ROWS, 3, (LINEAR,))
    dense = DenseLinear(random(N, K))
    for tokens in (0, 1, 2, 3, 4, 65):
        ops.linear(random(tokens, K), dense)
    ops.linear(random(3, K).double(), DenseLinear(random(N, K).double()))
    ops.linear(random(3, N), DenseLinear(random(K, N)))
    assert torch.equal(ops.linear(random(3, K), NoMatrix()), random(3, K) * 2)
    assert used == [2, 3]  # the plan of 3 tokens serves 2, for which none was measured


@CPU
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("plan", [ROWS, replace(ROWS, norm=True)], ids=["apart", "fused"])
def test_best_and_top_equal_the_separate_operations(plan: Plan, normed: bool) -> None:
    ops = ops_with(plan, 2, (BEST,))
    head = DenseBest(DenseLinear(random(N, K)))
    ids = torch.arange(N, dtype=torch.int32) * 2
    x = random(2, K, seed=1)
    weight = None if normed else random(K, seed=2)
    kept = x.clone()
    likeliest = TorchOps().best(x, weight, EPS, head, ids)
    assert torch.equal(ops.best(x, weight, EPS, head, ids), likeliest)
    for each in (ops, TorchOps()):
        columns = torch.full((2, 3), -5, dtype=torch.int32)
        each.best(x, weight, EPS, head, ids, columns[:, 1])
        assert torch.equal(columns[:, 1], likeliest)
        assert bool((columns[:, [0, 2]] == -5).all())
    for found, expected in zip(
        ops.top(x, weight, EPS, head, ids, 3), TorchOps().top(x, weight, EPS, head, ids, 3), strict=True
    ):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, kept)


@CPU
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_two_norms_side_by_side(tokens: int) -> None:
    table, b = random(9, K), random(tokens, 2 * K, seed=1)[:, K:]
    index = torch.tensor([[8, 0], [3, 1], [3, 2], [0, 5], [7, 7]])[:tokens, 0]
    a = table[index]
    first, second = random(K, seed=2), random(K, seed=3)
    kept = b.clone()
    expected = torch.cat(
        [torch.nn.functional.rms_norm(x, (K,), w, EPS) for x, w in ((a, first), (b, second))], dim=1
    )
    before = table.clone()
    kinds = (torch.int64, torch.int32)
    for ops, ids in ((ops, index.to(kind)) for ops in (TorchOps(), TritonOps()) for kind in kinds):
        found = ops.norm_pair(table, ids, first, b, second, EPS)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(b, kept)
        assert torch.equal(table, before)


@CPU
@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_tensors_beside_each_other(tokens: int, count: int, summed: bool) -> None:
    parts = [random(tokens, 2 * K, seed=i)[:, K:] for i in range(count)]
    added = random(tokens, K, seed=9) if summed else None
    last = parts[-1] if added is None else parts[-1] + added
    for ops in (TorchOps(), TritonOps()):
        assert torch.equal(ops.beside(parts, added), torch.cat([*parts[:-1], last], dim=1))


@CPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_rows_of_a_table(tokens: int, dtype: torch.dtype) -> None:
    table = random(9, K).to(dtype)
    index = torch.tensor([[8, 0], [3, 1], [3, 2], [0, 5], [7, 7]])
    for kind in (torch.int64, torch.int32):
        ids = index.to(kind)[:tokens, 0]  # of any stride
        for ops in (TorchOps(), TritonOps()):
            found = ops.rows(table, ids)
            assert found.dtype == dtype
            assert torch.equal(found, table[ids.long()])


@CPU
def test_a_sum_with_a_residual_inside_a_wider_tensor() -> None:
    x, wide, weight = random(3, K), random(3, 2 * K, seed=1), random(K, seed=2)
    residual = wide[:, K:]
    kept = wide.clone()
    found = TritonOps().add_rms_norm(x.clone(), residual, weight, EPS)
    expected = TorchOps().add_rms_norm(x.clone(), residual, weight, EPS)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(wide, kept)


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
    from engine.compiled import COMPILED

    n, k = 3072, 576
    plans = {
        t: Plan("rows", 8, 256, gate=t > 4) if t <= 8 else Plan("tile", 64, 64, gate=True) for t in BUCKETS
    }
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
