"""Every kernel variant that serving launches on a GPU was launched by the steps before the first request.

Variants are recorded on the CPU, for an H200 (support/launches.py): plain decoding of all batch sizes, and
chains of drafts. Trees need real kernels to grow: test_warm_up runs them on a GPU.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.engines import make

from engine import warm_up as module
from engine.llm import LLM
from engine.params import SamplingParams
from engine.warm_up import Limits, prefill_passes, warm_up

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="recorded by Triton's interpreter")
BASE = (
    "model=tiny",
    "model.dtype=bfloat16",
    "model.layers=1",
    "threads=1",
    "attention=triton",
    "device=cpu",
    "cache.tokens=60000",
    "sampling.max_tokens=3",
)
LONG = ("cache.max_context=1024",)
CROWD = (*LONG, "model.heads=32", "model.kv_heads=32", "model.head_dim=128", "cache.tokens=12000")  # queue
WIDE_HEADS = (*LONG, "model.heads=8", "model.kv_heads=8", "model.head_dim=128")  # whose passes are streamed


def warm(llm: LLM) -> int:
    modes = llm._container.modes()
    limits = Limits(min(modes.chunk_tokens, modes.context - 1), modes.chunk_tokens)
    return warm_up(llm._container.eager(), modes.widths, limits, llm.metrics, lambda *_: None)


def serve(llm: LLM, batches: Sequence[int]) -> None:
    """Prompts of every length alone and among others, new ones and ones behind a cached prefix."""
    longest = llm.max_context - 3
    drawn = random.Random(1)
    for batch in batches:
        lens = [1 + int((longest - 1) * drawn.random() ** 4) for _ in range(batch)]
        prompts = [[3 + i % 7] * length for i, length in enumerate(lens)]
        params = [
            SamplingParams(
                max_tokens=2 + i % 2,
                ignore_eos=True,
                temperature=0.7 * (i % 2),
                frequency_penalty=0.5 * (i % 3 == 2),
            )
            for i in range(batch)
        ]
        llm.generate(prompts, params)
    for length in range(1, longest, 31):
        llm.generate([[8] * length, [9, 8]], SamplingParams(max_tokens=1, ignore_eos=True))


@pytest.mark.parametrize(
    ("running", "more"),
    [
        (33, LONG),
        (1, LONG),
        (100, LONG),
        (33, ("cache.max_context=120",)),
        (33, (*LONG, "cache.page_size=16", "scheduler.chunk_tokens=128")),
        (40, (*LONG, "model.heads=8", "model.kv_heads=8", "model.head_dim=64")),
        (40, WIDE_HEADS),
        (40, (*WIDE_HEADS, "model.heads=32", "spec=ngram", "step_costs=measure")),
        (40, (*WIDE_HEADS, "spec=eagle3", "spec.load=dummy", "step_costs=measure")),
        (41, CROWD),
        (41, (*CROWD, "spec=eagle3", "spec.load=dummy", "step_costs=measure")),
        (20, (*LONG, "model.heads=7", "model.kv_heads=1", "model.head_dim=128")),
        (12, (*LONG, "model.heads=16", "model.kv_heads=1")),
        (80, (*LONG, "model.heads=12", "model.kv_heads=4", "attention.kv_splits=4")),
        (33, (*LONG, "spec=ngram", "step_costs=measure")),
        (33, (*LONG, "spec=eagle3", "spec.load=dummy", "step_costs=measure")),
    ],
    ids=str,
)
def test_serving_launches_nothing_new(
    running: int, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Field report T7."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from support.launches import recorded

    with recorded(monkeypatch) as found, make(*BASE, *more, f"scheduler.max_running={running}") as llm:
        warm(llm)
        before = set(found)
        serve(llm, range(1, running + 1, 1 if more == LONG and running == 33 else 7))
        serve(llm, [running])
    names = {name for name, _ in before}
    assert {"_attention_tile", "_rms_norm", "_rope_store", "_silu_mul", "_block_best", "_enter_run"} <= names
    assert ("_attention_stream" in names) is (running >= 40 and "model.head_dim=128" in more)
    assert ("attention_queue" in names) is (running == 41)
    assert found - before == set()


def test_a_variant_that_was_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts side by side, whose tiles fill the device without splits: alone none has so many."""
    from support.launches import recorded

    monkeypatch.setattr(module, "prefill_passes", lambda most, limits: [(8,), (64,), (512,)])
    with recorded(monkeypatch) as found, make(*BASE, *LONG, "scheduler.max_running=33") as llm:
        warm(llm)
        before = set(found)
        llm.generate([[5] * 700, [6] * 300, [7]], SamplingParams(max_tokens=2, ignore_eos=True))
    new = [dict(kinds) for name, kinds in found - before]
    assert [(kinds["BLOCK_M"], kinds["SPLIT"]) for kinds in new] == [(128, False)]


@pytest.mark.parametrize(
    ("value", "special", "same", "other"),
    [(2, True, 3, 1), (2, True, 3, 16), (1, False, 16, 1 << 31), (True, True, True, 1)],
)
def test_what_a_variant_depends_on(value: int, special: bool, same: int, other: int) -> None:
    from support.launches import operand_kind

    assert operand_kind(value, special) == operand_kind(same, special) != operand_kind(other, special)


def test_alignment_and_type_of_a_tensor_are_part_of_a_variant() -> None:
    from support.launches import operand_kind

    x = torch.zeros(64)
    assert operand_kind(x, True) == operand_kind(x[4:], True) != operand_kind(x[1:], True)
    assert operand_kind(x, False) == operand_kind(x[1:], False) != operand_kind(x.int(), False)


@pytest.mark.parametrize(
    ("most", "limits", "expected"),
    [
        (1, Limits(9, 9), [(2,), (5,), (9,)]),
        (1, Limits(1, 1), [(1,)]),
        (3, Limits(5, 6), [(2,), (2, 1, 1), (5,), (5, 1)]),
        (2, Limits(11, 23), [(2,), (2, 1), (5,), (5, 1), (9,), (9, 1), (11,), (11, 1), (9, 9), (11, 11)]),
    ],
)
def test_prefill_passes_stay_inside_the_limits(
    most: int, limits: Limits, expected: list[tuple[int, ...]]
) -> None:
    assert prefill_passes(most, limits) == expected
    assert all(sum(tokens) <= limits.chunk and len(tokens) <= most for tokens in expected)
