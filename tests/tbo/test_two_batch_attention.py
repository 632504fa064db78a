"""The composite of two halves: its facts are its children's, and what they prepare stays apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from support.engines import TINY, make

from backends.base import AttentionBackend, BackendFacts, facts_of, host_lens_of
from backends.composite import all_of
from backends.two_batch import TwoBatchAttention
from engine.batch import ForwardBatch, HostLens, LayerKV
from engine.lengths import needs_cpu_seq_lens
from engine.two_batches.split import Cutter
from speculative.base import NoSpeculation

FULL = BackendFacts(
    name="a",
    host_lens=HostLens.BOUND,
    tree_mask=True,
    device_metadata=True,
    page_sizes=(1, 16),
    dtypes={"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16",)},
    max_verify_width=16,
    step_kernels="triton",
    plans_outside=True,
)
WEAKER = {
    "host_lens": HostLens.EXACT,
    "tree_mask": False,
    "device_metadata": False,
    "page_sizes": (16,),
    "dtypes": {"cpu": ("float32",)},
    "max_verify_width": 4,
    "step_kernels": "torch",
    "plans_outside": False,
    "own_products": True,  # a table of products is read if either follows one
}


class Recorder(AttentionBackend):
    """Notes the batches that it prepares, and attends with zeros."""

    host_lens = HostLens.NONE

    def __init__(self, answer: int = 0) -> None:
        self.prepared: list[ForwardBatch] = []
        self.answer = answer
        self.ops = None  # type: ignore[assignment]

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        self.prepared.append(batch)

    def plan_graph(self, batch: ForwardBatch) -> int:
        return self.answer + batch.size

    def forward(self, q, k, v, kv: LayerKV, batch: ForwardBatch) -> torch.Tensor:
        return torch.full((q.shape[0], 1), float(self.answer))


def whole(batch: ForwardBatch) -> tuple[ForwardBatch, ...]:
    return (batch,)


def test_children_with_equal_facts_leave_them_as_they_are() -> None:
    """A fact that is added to the contract and forgotten here would fall back to its default."""
    assert all_of("pair", [FULL, dataclasses.replace(FULL, name="b")]) == dataclasses.replace(
        FULL, name="pair"
    )
    assert set(WEAKER) == {field.name for field in dataclasses.fields(BackendFacts)} - {"name"}


@pytest.mark.parametrize("name", WEAKER)
@pytest.mark.parametrize("first", [True, False])
def test_the_weaker_child_decides(name: str, first: bool) -> None:
    weak = dataclasses.replace(FULL, **{name: WEAKER[name]})
    pair = all_of("pair", [weak, FULL] if first else [FULL, weak])
    assert getattr(pair, name) == WEAKER[name]


def test_host_lengths_are_needed_only_if_a_child_reads_them() -> None:
    """Nothing else of two batches forces a host mirror (Y5)."""

    class Exact(Recorder):
        host_lens = HostLens.EXACT

    speculator = NoSpeculation(NoSpeculation.Config(), None)  # type: ignore[arg-type]
    free = TwoBatchAttention(Recorder(), Recorder(), whole)
    bound = TwoBatchAttention(Recorder(), Exact(), whole)
    assert host_lens_of(free) is HostLens.NONE
    assert needs_cpu_seq_lens(speculator, [("target", free)])[0] is False
    assert needs_cpu_seq_lens(speculator, [("target", bound)])[0] is True
    assert facts_of(bound).host_lens is HostLens.EXACT


def test_a_captured_pass_is_planned_in_the_parts_that_it_is_cut_into() -> None:
    first, second = Recorder(100), Recorder(200)
    pair = TwoBatchAttention(first, second, Cutter(2, 2).parts)
    size = 5
    batch = verify(size)
    assert pair.plan_graph(batch) == (103, 202)
    alone = TwoBatchAttention(first, second, Cutter(8, 2).parts)
    assert alone.plan_graph(batch) == (105,)


def verify(size: int) -> ForwardBatch:
    from test_split import verify_batch

    return verify_batch(size, 1)


def test_each_half_prepares_with_a_child_of_its_own() -> None:
    """torch attention keeps what it prepared for a pass: shared, the second half would overwrite the
    first's."""
    with make(*TINY, "tbo=two_batch") as llm:
        first, second = llm._container.attention().children()
        assert type(first) is type(second)
        assert first is not second
        assert first.ops is not second.ops
        assert llm._container.attention().ops is first.ops
    with make(*TINY, "tbo=two_batch", "attention=triton", "attention.kv_splits=2") as llm:
        first, second = llm._container.attention().children()
        assert first._workspace.sums.data_ptr() != second._workspace.sums.data_ptr()
