"""The memory plan against what is really allocated, and against published parameter counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.batch import KVGroup, KVLayout
from engine.footprints import Graphs, Passes, kv_layout, parameters, weight_bytes
from engine.kv_pool import KVPool
from engine.memory import PlanSizes, human, memory_plan
from engine.models.shape import ModelShape
from engine.sampling.columns import SamplingColumns
from engine.table import RequestTable, TableSize
from speculative.base import DraftMemory, RelayField

SMOL = ModelShape("llama", 49152, 576, 30, 9, 3, 64, 1536, 8192, tied=True)
LLAMA8B = ModelShape("llama", 128256, 4096, 32, 32, 8, 128, 14336, 131072)
QWEN25_05B = ModelShape("qwen2", 151936, 896, 24, 14, 2, 64, 4864, 32768, tied=True, qkv_bias=True)
QWEN3_06B = ModelShape("qwen3", 151936, 1024, 28, 16, 8, 128, 3072, 40960, tied=True, qk_norm=True)
SIZES = PlanSizes(tokens=1024, page_size=16, context=512, passes=Passes(running=8, width=1, chunk=256))


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
    passes = replace(SIZES.passes, width=3)
    sizes = replace(SIZES, tokens=tokens, page_size=page, passes=passes, relay_bytes=64 * 4)
    plan = {item.name: item.bytes for item in memory_plan(shape, dtype, dtype, sizes).items}
    device = torch.device("cpu")
    layout = KVLayout((KVGroup(3, 2, 16),), dtype)
    assert kv_layout(shape, dtype) == layout
    pool = KVPool(layout, tokens // page, page, device)
    assert plan["kv pool"] == sum(t.numel() * t.element_size() for kv in pool.layers for t in (kv.k, kv.v))
    rows = passes.running + 1
    columns = SamplingColumns(rows, shape.vocab_size, device, penalties=True)
    assert plan["sampling columns"] == columns.bytes()
    table = RequestTable(TableSize(rows, sizes.context + 3 * passes.width, page), columns, relay, device)
    assert plan["rows"] == table.nbytes()


def test_plan_adds_up_and_has_only_positive_items():
    plan = memory_plan(SMOL, "int4", "bfloat16", SIZES)
    assert plan.total == sum(item.bytes for item in plan.items)
    assert all(item.bytes > 0 for item in plan.items)
    assert len({item.name for item in plan.items}) == len(plan.items) == 5


def test_what_is_needed_beside_weights_and_pool_is_every_other_line():
    """Field report K11: weights, draft, KV, graphs, workspace, each with its line."""
    graphs = Graphs(decode=12, prefill=10, draft_passes=5, largest=256)
    sizes = replace(
        SIZES,
        passes=Passes(8, 5, 256, states=3, drafts=True),
        graphs=graphs,
        scratch=7,
        attention=1 << 20,
        margin=1 << 29,
    )
    plan = memory_plan(SMOL, "bfloat16", "bfloat16", sizes, DraftMemory(1 << 24, 512, 4096))
    made = {item.name: item.bytes for item in plan.items}
    first = {"weights", "draft weights", "kv pool", "draft kv pool"}
    assert set(made) == first | {
        "rows",
        "sampling columns",
        "workspace",
        "attention workspace",
        "decode graphs",
        "prefill graphs",
        "draft scratch",
        "margin",
    }
    assert plan.beside == plan.total - sum(made[name] for name in first)
    assert made["draft scratch"] == 9 * 7 * 512
    assert made["decode graphs"] > made["workspace"]  # they have memory of their own
    assert all(item.name in plan.line() for item in plan.items)
    assert "\n" not in plan.line()


def test_two_lanes_capture_everything_twice():
    one = replace(SIZES, graphs=Graphs(prefill=10, largest=256))
    two = replace(SIZES, graphs=Graphs(prefill=10, largest=256, lanes=2))
    item = {
        lanes: memory_plan(SMOL, "bfloat16", "bfloat16", sizes).items[-1]
        for lanes, sizes in ((1, one), (2, two))
    }
    assert item[2].name == "prefill graphs"
    assert item[2].bytes == 2 * item[1].bytes


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1.0 GiB"), (1 << 41, "2048.0 GiB")],
)
def test_sizes_in_words(size, text):
    assert human(size) == text
