"""What a dependent kernel reads before its wait was written two kernels in front of it or earlier.

Steps and prefill passes are recorded in Triton's interpreter, in the order in which a GPU would launch them,
all products by own kernels: the fewest that can stand between a writer and a reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.engines import TINY, make
from torch import Tensor
from torch.utils._pytree import tree_flatten

from engine.batch import kv_slots
from engine.graphs import capture
from engine.graphs.recording import Recording
from engine.kernel_choices.plans import NORM_GATED, Choices, Plan
from engine.params import SamplingParams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="recorded by Triton's interpreter")
# Kernel -> what it reads before its wait, weights apart; of the pools only the KV of earlier passes.
# Streams and the queue, launched in the place of tiles, read no more (tests/kernels/test_launch_rules.py).
EARLY = {
    "_attention_tile": ("table_ptr", "rows_ptr", "lens_ptr", "start_ptr", "tree_ptr", "k_ptr", "v_ptr"),
    "_rope_store": ("positions_ptr", "slots_ptr", "cos_ptr", "sin_ptr"),
}
POOLS = ("k_ptr", "v_ptr")
PAGE = 16  # cache.page_size
SMALL = (
    *TINY, "model.layers=2", "attention=triton", "cache.max_context=64", "sampling.max_tokens=4",
)  # fmt: skip
STEP = ("graph=step", "graph.sizes=[2]")
EAGLE3 = (*STEP, "spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
PASSES = {
    "plain": STEP,
    "ngram": (*STEP, "spec=ngram", "spec.adaptive=false", "spec.drafts=4"),
    "eagle3 chain": (*EAGLE3, "spec.num_steps=4"),
    "eagle3 tree": (*EAGLE3, "spec.topk=2", "spec.num_steps=3", "spec.num_draft_tokens=6"),
    "prefill": ("pcg=full", "pcg.buckets=[8]", "pcg.requests=[2]"),
}


@dataclass(frozen=True)
class Launched:
    """An operation that launches a kernel: its name, and the tensors that it may read or write by name."""

    name: str
    given: dict[str, Tensor]


def launched(recording: Recording) -> list[Launched]:
    return [
        Launched(name, dict(_given(operation)))
        for name, operation in zip(recording.names, recording.operations, strict=True)
    ]


def _given(operation: Any) -> Iterator[tuple[str, Tensor]]:
    held = dict(
        zip(operation.__code__.co_freevars, (c.cell_contents for c in operation.__closure__), strict=True)
    )
    names = held["executor"].arg_names if "executor" in held else ()
    for at, value in enumerate(
        tree_flatten([held.get(key) for key in ("args", "kwargs", "named", "made")])[0]
    ):
        if isinstance(value, Tensor):
            yield names[at] if at < len(names) else str(at), value


def overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors share bytes, or may."""
    (low, high), (begin, end) = _range(one), _range(other)
    return low < end and begin < high


def _range(x: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + ((last + 1) * x.element_size() if x.numel() else 0)


def too_near(order: Sequence[Launched]) -> list[str]:
    """Early readers whose values the kernel right in front of them touches."""
    found = []
    for front, reader in pairwise(order):
        for name in EARLY.get(reader.name, ()):
            touching = any(overlap(reader.given[name], x) for x in front.given.values())
            if touching and not (name in POOLS and front.name == "_rope_store"):
                found.append(f"{front.name} touches {name} of {reader.name}")
    return found


def recorded(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    recordings = []
    record = capture.record

    def kept(work: object) -> object:
        made = record(work)  # type: ignore[arg-type,var-annotated]
        recordings.append(made[0])
        return made

    def planned(choices: object, stage: str, *place: object) -> Plan:
        return Plan("tile", 64, 64, gate=stage == NORM_GATED)

    monkeypatch.setattr(capture, "record", kept)
    monkeypatch.setattr(Choices, "plan", planned)
    with make(*SMALL, *options) as llm:
        llm.generate([[1, 2, 3], [4, 5]], SamplingParams(max_tokens=3, ignore_eos=True))
    return recordings


@pytest.mark.parametrize("name", PASSES)
def test_no_early_reader_is_right_behind_its_writer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = recorded(PASSES[name], monkeypatch)
    orders = [launched(recording) for recording in recordings]
    assert {"_attention_tile", "_rope_store"} <= {one.name for order in orders for one in order}
    assert [order[0].name for order in orders if order[0].name in EARLY] == []
    assert [problem for order in orders for problem in too_near(order)] == []


@pytest.mark.parametrize("name", ["ngram", "eagle3 chain"])
def test_rope_store_writes_no_key_that_attention_may_have_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass stores at positions from the lengths on, in pages of its own rows."""
    compared = 0
    for recording in recorded(PASSES[name], monkeypatch):
        order = launched(recording)
        for at, operation in enumerate(recording.operations):
            if order[at].name == "_attention_tile":
                given, stored = order[at].given, order[at - 1].given["slots_ptr"]
                old = old_slots(given["table_ptr"], given["rows_ptr"], given["lens_ptr"])
                compared += old.numel()
                assert not torch.isin(old, stored).any()
            with torch.inference_mode():
                operation()
    assert compared > 0


def old_slots(table: Tensor, rows: Tensor, lens: Tensor) -> Tensor:
    """Slots of all positions below the lengths, those of the padding page left out."""
    pages = [
        kv_slots(table, PAGE, row, torch.arange(length))
        for row, length in zip(rows, lens.tolist(), strict=True)
    ]
    slots = torch.cat(pages)
    return slots[slots >= PAGE]


@pytest.mark.parametrize(
    ("between", "expected"),
    [((), ["_opening touches lens_ptr of _attention_tile"]), (("aten::embedding",), [])],
    ids=["right behind", "one between"],
)
def test_a_writer_right_in_front_is_found(between: tuple[str, ...], expected: list[str]) -> None:
    lens = torch.zeros(8, dtype=torch.int32)
    others = {name: torch.zeros(1) for name in EARLY["_attention_tile"]}
    order = [
        Launched("_opening", {"out_len_ptr": lens[:4]}),
        *(Launched(name, {"0": torch.zeros(2)}) for name in between),
        Launched("_attention_tile", others | {"lens_ptr": lens[2:4]}),
    ]
    assert too_near(order) == expected


def test_tensors_overlap_by_their_bytes() -> None:
    x = torch.zeros(8)
    assert overlap(x[:4], x[3:])
    assert not overlap(x[:4], x[4:])
    assert not overlap(x[:0], x)
