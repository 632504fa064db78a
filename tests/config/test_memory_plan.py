"""The memory plan against what is really allocated, and against published parameter counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.batch import KVGroup, KVLayout
from engine.kv_pool import KVPool
from engine.memory import (
    CPU_POOL_BYTES,
    CPU_POOL_TOKENS,
    GPU_SHARE,
    PlanSizes,
    auto_context,
    auto_tokens,
    human,
    kv_layout,
    memory_plan,
    parameters,
    weight_bytes,
)
from engine.models.shape import ModelShape
from engine.sampling.columns import SamplingColumns
from engine.table import RequestTable, TableSize
from speculative.base import RelayField

SMOL = ModelShape("llama", 49152, 576, 30, 9, 3, 64, 1536, 8192, tied=True)
LLAMA8B = ModelShape("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
QWEN25_05B = ModelShape("qwen2", 151936, 896, 24, 14, 2, 64, 4864, 32768, tied=True, qkv_bias=True)
QWEN3_06B = ModelShape("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, 40960, tied=True, qk_norm=True)
SIZES = PlanSizes(tokens=1024, page_size=16, context=512, max_running=8, chunk=256)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        (SMOL, 134_515_008),
        (LLAMA8B, 8_030_261_248),
        (QWEN25_05B, 494_032_768),
        (QWEN3_06B, 596_049_920),
    ],
)
def test_parameters_equal_the_published_counts(shape, count):
    assert parameters(shape) == count
    assert weight_bytes(shape, "float32") == 4 * count
    assert weight_bytes(shape, "bfloat16") == 2 * count


def test_int4_is_about_a_quarter_of_bf16_in_the_layers():
    head = SMOL.vocab_size * SMOL.hidden_size * 2
    layers = weight_bytes(SMOL, "bfloat16") - head
    assert 0.28 < (weight_bytes(SMOL, "int4") - head) / layers < 0.33


@pytest.mark.parametrize(("tokens", "page"), [(1024, 16), (64, 1), (256, 64)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pool_rows_and_columns_are_what_is_allocated(tokens, page, dtype):
    shape = ModelShape("llama", 300, 64, 3, 4, 2, 16, 128, 512)
    relay = (RelayField("hidden", (64,), "float32"),)
    sizes = replace(SIZES, tokens=tokens, page_size=page, width=3, relay_bytes=64 * 4)
    plan = {item.name: item.bytes for item in memory_plan(shape, dtype, dtype, sizes).items}
    device = torch.device("cpu")
    layout = KVLayout((KVGroup(3, 2, 16),), dtype)
    assert kv_layout(shape, dtype) == layout
    pool = KVPool(layout, tokens // page, page, device)
    assert plan["kv pool"] == sum(t.numel() * t.element_size() for kv in pool.layers for t in (kv.k, kv.v))
    rows = sizes.max_running + 1
    columns = SamplingColumns(rows, shape.vocab_size, device, penalties=True)
    assert plan["sampling columns"] == columns.bytes()
    table = RequestTable(TableSize(rows, sizes.context + 3 * sizes.width, page), columns, relay, device)
    assert plan["rows"] == table.nbytes()


def test_plan_adds_up_and_has_only_positive_items():
    plan = memory_plan(SMOL, "int4", "bfloat16", SIZES)
    assert plan.total == sum(item.bytes for item in plan.items)
    assert all(item.bytes > 0 for item in plan.items)
    assert len({item.name for item in plan.items}) == len(plan.items) == 5


@pytest.mark.parametrize(
    ("context", "running", "per_token", "free", "expected"),
    [
        (8192, 64, 23040, None, CPU_POOL_BYTES // 23040),
        (8192, 1, 23040, None, 8192),  # no more than the rows can use
        (131072, 64, 131072, None, 131072),  # one full context fits, whatever it takes
        (4096, 64, 768, None, CPU_POOL_TOKENS),
        (4096, 64, 1 << 10, 1 << 30, 4096 * 64),
        (4096, 64, 1 << 20, 1 << 30, int((1 << 30) * GPU_SHARE) >> 20),
        (4096, 64, 1 << 20, 0, 0),
    ],
)
def test_automatic_pool(context, running, per_token, free, expected):
    assert auto_tokens(context, running, per_token, free) == expected


@pytest.mark.parametrize(("asked", "expected"), [("auto", 8192), (100, 100), (9000, 8192)])
def test_automatic_context(asked, expected):
    assert auto_context(asked, 8192) == expected


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 41, "2048.0 GiB")],
)
def test_sizes_in_words(size, text):
    assert human(size) == text
