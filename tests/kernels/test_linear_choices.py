"""Stages of a layer by plan equal the separate operations; what has no plan is computed by those."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from linear_cases import CPU, EPS, operands, random

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps
from engine.kernel_choices.plans import (
    BEST,
    LINEAR,
    NORM_GATED,
    NORM_LINEAR,
    Choices,
    Place,
    Plan,
    bucket_of,
)
from engine.models.linear import DenseLinear, Linear
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
