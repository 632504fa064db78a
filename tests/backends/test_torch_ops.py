"""The torch operations equal Hugging Face's Llama modules to the bit, and keep nothing between passes."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from backends.torch_ops import TorchOps
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (7, 2048), (3, 64)])
def test_norm_equals_hugging_face(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    theirs = LlamaRMSNorm(shape[1], eps=1e-5).to(dtype)
    theirs.weight.data.normal_()
    x, residual = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    assert torch.equal(TorchOps().rms_norm(x, theirs.weight.data, 1e-5), theirs(x))
    expected = theirs(x + residual)
    assert torch.equal(TorchOps().add_rms_norm(x, residual, theirs.weight.data, 1e-5)[0], expected)


def batch_at(positions: torch.Tensor) -> ForwardBatch:
    none = torch.zeros(0, dtype=torch.int64)
    slots = torch.arange(len(positions)) + 1
    return ForwardBatch(Mode.IDLE, none, none, positions, slots, SeqLens(none, ()), none, (), none)


def rotated(ops: TorchOps, dtype: torch.dtype, batch: ForwardBatch, fused: bool) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    qkv = torch.randn(len(batch.positions), 15 * 64).to(dtype)
    q, k, v = (x.unflatten(-1, (-1, 64)) for x in qkv.split([576, 192, 192], -1))
    if not fused:
        q, k = q.contiguous(), k.contiguous()
    kv = LayerKV(0, torch.zeros(32, 3, 64, dtype=dtype), torch.zeros(32, 3, 64, dtype=dtype))
    new_q, new_k = ops.rope_store(q, k, v, *tables(), kv, batch)
    assert torch.equal(kv.k[batch.slots], new_k)
    return q, k, new_q, new_k


def tables() -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(64).float(), 1e4 ** -(torch.arange(32).float() / 32)).repeat(1, 2)
    return angles.cos(), angles.sin()


def hugging_face(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    cos, sin = (t[positions].to(q.dtype)[None] for t in tables())
    turned = apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin)
    return tuple(x[0].transpose(0, 1) for x in turned)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("tokens", [1, 6])
def test_rotation_equals_hugging_face(dtype: torch.dtype, fused: bool, tokens: int) -> None:
    positions = torch.tensor([63, 0, 5, 6, 17, 2][:tokens])
    q, k, new_q, new_k = rotated(TorchOps(), dtype, batch_at(positions), fused)
    expected_q, expected_k = hugging_face(q, k, positions)
    assert torch.equal(new_q, expected_q)
    assert torch.equal(new_k, expected_k)


def test_rotation_follows_the_batch_and_its_rewritten_positions() -> None:
    ops = TorchOps()
    first, second = batch_at(torch.tensor([1, 2])), batch_at(torch.tensor([9, 40]))
    for batch in (first, second, first):
        q, k, new_q, _ = rotated(ops, torch.float32, batch, True)
        assert torch.equal(new_q, hugging_face(q, k, batch.positions)[0])
    first.positions.add_(3)
    ops.new_pass()
    q, k, new_q, _ = rotated(ops, torch.float32, first, True)
    assert torch.equal(new_q, hugging_face(q, k, first.positions)[0])
