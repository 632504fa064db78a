"""The fused attention of unrolled steps against one dense softmax, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from speculative.eagle3.training.attention import unrolled_attention


def dense(q: Tensor, keys: list[Tensor], values: list[Tensor], scale: float) -> Tensor:
    """Every score written out: causal over the first keys, one diagonal score for each later step."""
    length = q.shape[2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(future, float("-inf"))
    own = [(q * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
    weights = torch.cat([scores, *own], -1).softmax(-1)
    out = weights[..., :length] @ values[0]
    for i, value in enumerate(values[1:]):
        out = out + weights[..., length + i, None] * value
    return out


def compare(device: str, dtype: torch.dtype, later: int, tolerance: float) -> None:
    torch.manual_seed(later)
    shape = (3, 4, 37, 64)
    leaves = [
        torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(1 + 2 * (later + 1))
    ]
    copies = [leaf.detach().double().requires_grad_() for leaf in leaves]
    grad = torch.randn(shape, device=device, dtype=dtype)
    n = later + 1
    out = unrolled_attention(leaves[0], leaves[1 : 1 + n], leaves[1 + n :], 0.2)
    expected = dense(copies[0], copies[1 : 1 + n], copies[1 + n :], 0.2)
    out.backward(grad)
    expected.backward(grad.double())
    pairs = [(out, expected), *((leaf.grad, copy.grad) for leaf, copy in zip(leaves, copies, strict=True))]
    for got, wanted in pairs:
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < tolerance, float(error)


@pytest.mark.parametrize("later", [0, 1, 4])
def test_equals_one_softmax_over_both_kinds_of_keys(later: int) -> None:
    compare("cpu", torch.float32, later, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("later", [0, 1, 4])
def test_equals_it_on_a_gpu_in_bfloat16(later: int) -> None:
    compare("cuda", torch.bfloat16, later, 1e-2)
