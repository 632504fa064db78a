"""Norm, head and the best outputs in two kernels, against torch; ties, and scores that are no numbers."""

from __future__ import annotations

import pytest
import torch
from linear_cases import CPU, EPS, gpu, random

from engine.kernel_choices.plans import Plan
from kernels.linear import Norm
from kernels.linear_best import best_outputs

PLANS = [Plan("rows", 4, 32), Plan("tile", 16, 16), Plan("tile", 16, 64, swap=True)]
plans = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.kernel}{'-swap' * plan.swap}")


@pytest.fixture(params=[1 << 14, 1], ids=["side by side", "in turns"], autouse=True)
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a program holds the best of all blocks at once."""
    monkeypatch.setattr("kernels.linear_best.MOST_CELLS", request.param)


def check(plan: Plan, tokens: int, n: int, k: int, top: int, device: str = "cpu") -> None:
    x, weight = random(tokens, k, device=device), random(n, k, device=device, seed=1)
    norm = random(k, device=device, seed=2)
    ids = torch.arange(n, dtype=torch.int32, device=device) * 3 + 1
    kept, logprobs = best_outputs(plan, x, weight, ids, top, Norm(norm, EPS))
    normed = torch.nn.functional.rms_norm(x.double(), (k,), norm.double(), EPS)
    scores = normed @ weight.double().T
    expected, index = scores.log_softmax(1).topk(top, dim=1)
    assert torch.equal(kept, index.int() * 3 + 1)
    # A probability errs with the scores that it is made of, and those with what they are sums of, |x| |w|:
    # small ones are differences of large ones.
    size = (normed.abs() @ weight.double().abs().T).amax().item()
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=8e-7 * size)


@CPU
@plans
@pytest.mark.parametrize(("tokens", "n", "top"), [(1, 70, 1), (3, 70, 4), (4, 64, 16), (2, 16, 16)])
def test_best_outputs(plan: Plan, tokens: int, n: int, top: int) -> None:
    check(plan, tokens, n, 40, top)


@CPU
@plans
def test_of_equal_scores_the_lowest_index_comes_first(plan: Plan) -> None:
    """As torch.argmax has it; within a block, across blocks, and at the very end."""
    weight = torch.zeros(50, 16)
    for row, same in enumerate(([7, 8], [3, 40], [48, 49])):
        weight[same, row] = 5.0
    x = torch.eye(3, 16)
    scores = x @ weight.T
    kept, _ = best_outputs(plan, x, weight, torch.arange(50, dtype=torch.int32), 2)
    assert torch.equal(kept[:, 0], scores.argmax(1).int())
    assert kept.tolist() == [[7, 8], [3, 40], [48, 49]]


@CPU
@plans
def test_all_scores_equal(plan: Plan) -> None:
    kept, logprobs = best_outputs(plan, torch.ones(2, 16), torch.ones(50, 16), torch.arange(50).int(), 5)
    assert kept.tolist() == [[0, 1, 2, 3, 4]] * 2
    torch.testing.assert_close(logprobs, torch.full((2, 5), -torch.tensor(50.0).log().item()))


@CPU
@plans
def test_scores_that_are_no_numbers(plan: Plan) -> None:
    """They come last, and what comes out are ids all the same, each once."""
    weight = random(20, 16)
    weight[3] = float("nan")
    x = random(2, 16, seed=1)
    kept, _ = best_outputs(plan, x, weight, torch.arange(20).int(), 16)
    finite = (x @ weight.T).nan_to_num(nan=float("-inf"))
    assert torch.equal(kept.long(), finite.topk(16).indices)
    x[:] = float("nan")
    kept, logprobs = best_outputs(plan, x, weight, torch.arange(20).int(), 4)
    assert kept.tolist() == [[0, 1, 2, 3]] * 2
    assert (logprobs == float("-inf")).all()


@gpu
@pytest.mark.parametrize("plan", [Plan("rows", 4, 1024, warps=8), Plan("tile", 64, 32)], ids=str)
@pytest.mark.parametrize("top", [1, 4, 16])
def test_best_outputs_on_a_gpu(plan: Plan, top: int) -> None:
    for tokens in (1, 4) if plan.kernel == "rows" else (1, 8, 33):
        check(plan, tokens, 32000, 4096, top, "cuda")
