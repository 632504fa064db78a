"""Operations on rows that stand beside products equal torch's, and write nothing but their results."""

from __future__ import annotations

import pytest
import torch
from linear_cases import CPU, EPS, random

from backends.torch_ops import TorchOps
from backends.triton_ops import TritonOps

K = 40


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
