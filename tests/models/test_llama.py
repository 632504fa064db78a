"""The decoder itself: auxiliary states, idle passes, in-place operations, packed weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_attention import DenseLoop, PlainOps, idle, one_request
from torch import Tensor

from engine.build import make_config
from engine.models.linear import (
    INT4_ROWS,
    DenseLinear,
    Int4Linear,
    PackedLinear,
    dense_linear,
    merge_blocks,
    packs_bfloat16,
)
from engine.models.llama import OVERSHOOT, LlamaModel
from engine.models.tiny import TinyModel
from engine.models.weights import Q4Blocks

IDS = [5, 250, 17, 300, 8, 8, 90]


def tiny(dtype: str = "float32", **options: Any) -> LlamaModel:
    model = TinyModel(make_config(TinyModel, options, "model")).load("cpu", dtype).model
    assert isinstance(model, LlamaModel)
    return model


class InPlaceOps(PlainOps):
    """Overwrites its operands wherever the contract allows it."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x.copy_(super().rms_norm(x, weight, eps))

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x.add_(residual)
        return super().rms_norm(x, weight, eps), x


@pytest.mark.parametrize("options", [{}, {"qk_norm": True, "qkv_bias": True}, {"tied": True}])
def test_operations_may_work_in_place(options: dict[str, Any]) -> None:
    model = tiny(**options)
    model.aux_layers = (0, 1, model.shape.num_layers)
    plain, in_place = DenseLoop(model), DenseLoop(model)
    in_place.attention.ops = InPlaceOps()
    embed = model.weights.embed.clone()
    batch = one_request(torch.tensor(IDS), 0)
    results = [model.forward_with_aux(batch, loop.attention, loop.kv) for loop in (plain, in_place)]
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)
    assert torch.equal(model.weights.embed, embed)


def test_aux_states_are_the_inputs_of_the_chosen_layers() -> None:
    """The last layer's input is what a model of one layer fewer puts out, before its norm."""
    model = tiny(layers=3)
    model.aux_layers = (0, 2, 3)
    loop = DenseLoop(model)
    batch = one_request(torch.tensor(IDS), 0)
    hidden, aux = model.forward_with_aux(batch, loop.attention, loop.kv)
    assert aux is not None
    first, third, last = aux.split(model.shape.hidden_size, dim=1)
    assert torch.equal(first, model.embedding()[batch.input_ids])
    assert torch.equal(loop.attention.ops.rms_norm(last, model.weights.final_norm, 1e-5), hidden)
    shorter = tiny(layers=2)
    shorter.aux_layers = (2,)
    other = DenseLoop(shorter)
    assert torch.equal(shorter.forward_with_aux(batch, other.attention, other.kv)[1], third)


def test_forward_is_forward_with_aux_without_aux() -> None:
    model = tiny()
    loop, other = DenseLoop(model), DenseLoop(model)
    batch = one_request(torch.tensor(IDS), 0)
    hidden, aux = model.forward_with_aux(batch, loop.attention, loop.kv)
    assert aux is None
    assert torch.equal(model.forward_with_aux(batch, other.attention, other.kv)[0], hidden)


@pytest.mark.parametrize("options", [{}, {"qk_norm": True}])
def test_idle_pass(options: dict[str, Any]) -> None:
    model = tiny(**options)
    loop = DenseLoop(model)
    hidden, _ = model.forward_with_aux(idle(), loop.attention, loop.kv)
    assert hidden.shape == (0, model.shape.hidden_size)
    assert model.logits(hidden).shape == (0, model.shape.vocab_size)


def test_positions_past_the_context_are_computed() -> None:
    """A late step overshoots the context; what it computes is dropped, but it must not fail."""
    model = tiny(max_positions=8)
    loop = DenseLoop(model, positions=8 + OVERSHOOT)
    assert loop.logits([1] * (8 + OVERSHOOT)).isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_logits_are_fp32_and_kv_has_the_compute_dtype(dtype: str) -> None:
    model = tiny(dtype)
    assert model.kv_layout.dtype == dtype
    assert (model.kv_layout.groups[0].layers, model.kv_layout.groups[0].heads) == (3, 2)
    logits = DenseLoop(model).logits(IDS)
    assert logits.dtype == torch.float32
    assert logits.shape == (len(IDS), 512)


def test_random_model_chooses_clearly() -> None:
    """Its best token stands clear of the second, so that token-for-token tests rarely meet ties."""
    top = DenseLoop(tiny()).logits(list(range(200))).topk(2).values
    gaps = top[:, 0] - top[:, 1]
    assert gaps.median() > 0.1
    assert (gaps < 1e-3).float().mean() < 0.02


@pytest.mark.parametrize("rows", [1, 2, INT4_ROWS, INT4_ROWS + 1, 40])
@pytest.mark.parametrize("keep_dense", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_int4_product(rows: int, keep_dense: bool, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    parts = [random_q4(size, 96, generator) for size in (32, 48)]
    blocks = merge_blocks(parts)
    offset = torch.randn(80, generator=generator).bfloat16() if bias else None
    x = torch.randn(rows, 96, generator=generator).bfloat16()
    expected = x.float() @ torch.cat([part.dense() for part in parts]).T
    expected = expected if offset is None else expected + offset.float()
    found = Int4Linear(blocks, offset, keep_dense=keep_dense)(x)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 5, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_product_equals_the_plain_one(dtype: torch.dtype, rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(80, 96, generator=generator).to(dtype)
    offset = torch.randn(80, generator=generator).to(dtype) if bias else None
    x = torch.randn(rows, 96, generator=generator).to(dtype)
    linear = dense_linear(weight, offset)
    packed = dtype == torch.bfloat16 and packs_bfloat16()
    assert isinstance(linear, PackedLinear if packed else DenseLinear)
    assert torch.equal(linear(x), DenseLinear(weight, offset)(x))
    assert linear.nbytes() >= weight.nbytes


def random_q4(rows: int, columns: int, generator: torch.Generator) -> Q4Blocks:
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8, generator=generator)
    scale = torch.rand(rows, columns // 32, generator=generator) * 0.02 + 0.01
    return Q4Blocks(codes, scale, -scale * torch.rand(rows, columns // 32, generator=generator) * 15)
