"""The parts under the graph modes: sizes, arguments taken apart, static rows, a function with its graphs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.errors import InternalError
from engine.graphs.capture import CpuCapturer
from engine.graphs.graphed import GraphedCallable
from engine.graphs.sizes import BatchSizes, auto_sizes, chosen_sizes, size_problems
from engine.graphs.static_rows import StaticRows
from engine.graphs.values import key_of, tensors_of, with_tensors
from engine.upload import BatchRows


@pytest.mark.parametrize(
    ("running", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (37, (1, 2, 4, 8, 12, 16, 24, 32, 37)),  # G3: an odd limit is captured, too
        (64, (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)),
        (70, (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 70)),
    ],
)
def test_automatic_sizes_end_with_the_largest_batch(running: int, sizes: tuple[int, ...]) -> None:
    assert auto_sizes(running) == chosen_sizes("auto", running) == sizes


def test_automatic_sizes_waste_little() -> None:
    for running in range(1, 600):
        sizes = BatchSizes(auto_sizes(running))
        assert sizes.largest == running
        for count in range(1, running + 1):
            size = sizes.fit(count)
            assert size is not None
            assert size >= count
            assert size - count < max(4, size / 3)


def test_a_batch_larger_than_all_sizes_fits_nowhere() -> None:
    sizes = BatchSizes((4, 1, 2))
    assert [sizes.fit(n) for n in (0, 1, 2, 3, 4, 5)] == [1, 1, 2, 4, 4, None]
    assert chosen_sizes([8, 2, 8], 99) == (2, 8)


@pytest.mark.parametrize(
    ("asked", "words"), [("many", "graph.sizes=many"), ((), "captures nothing"), ((0, 4), "below 1")]
)
def test_wrong_sizes_are_named(asked: str | tuple[int, ...], words: str) -> None:
    (problem,) = size_problems(asked)
    assert words in problem
    assert size_problems("auto") == size_problems((3,)) == []


@dataclass(frozen=True)
class Inner:
    values: Tensor
    name: str


@dataclass(frozen=True)
class Outer:
    first: Tensor
    inner: Inner
    more: dict[str, Tensor]
    pair: tuple[Tensor, Tensor | None]
    count: int


def outer(size: int = 2, name: str = "x", count: int = 1) -> Outer:
    inner = Inner(torch.ones(size, 3), name)
    return Outer(torch.zeros(size), inner, {"a": torch.ones(1)}, (torch.zeros(4), None), count)


def test_every_tensor_is_found_and_replaced() -> None:
    value = outer()
    assert [path for path, _ in tensors_of(value)] == ["first", "inner.values", "more.a", "pair.0"]
    doubled = with_tensors(value, lambda path, tensor: tensor * 2 + len(path))
    assert doubled.inner.name == "x"
    assert doubled.pair[1] is None
    assert doubled.first.tolist() == [5, 5]
    assert doubled.more["a"].tolist() == [8]


def test_a_key_is_all_but_the_tensors_values() -> None:
    assert key_of(outer()) == key_of(outer())
    others = [outer(size=3), outer(name="y"), outer(count=2)]
    assert len({key_of(value) for value in (outer(), *others)}) == 4
    assert key_of(outer()) != key_of(outer().inner)
    assert key_of(torch.zeros(2)) != key_of(torch.zeros(2, dtype=torch.int32))


def batch(*rows: int) -> BatchRows:
    return BatchRows(torch.tensor(rows), torch.arange(len(rows) + 1, dtype=torch.int32))


def test_static_rows_are_padded_with_row_zero() -> None:
    rows = StaticRows(4, torch.device("cpu"))
    rows.load(batch(3, 1, 2))
    view = rows.padded(4, 2)
    assert view.rows.tolist() == [3, 1, 2, 0]
    assert view.query_start.tolist() == [0, 2, 4, 6, 8]
    rows.load(batch(5))
    assert rows.padded(2, 1).rows.tolist() == [5, 0]
    assert view.rows.tolist() == [5, 0, 0, 0], "the same memory for every size"
    assert rows.holds(rows.padded(2, 3).rows)
    assert not rows.holds(torch.tensor([5, 0]))


def test_blank_rows_come_back() -> None:
    rows = StaticRows(2, torch.device("cpu"))
    rows.load(batch(7, 8))
    with rows.blank():
        with rows.blank():
            assert rows.padded(2, 1).rows.tolist() == [0, 0]
        assert rows.padded(2, 1).rows.tolist() == [0, 0]
    assert rows.padded(2, 1).rows.tolist() == [7, 8]


@dataclass(frozen=True)
class Call:
    given: Tensor
    table: Tensor
    factor: int


class Recorded:
    """A function with a fixed table, and what it was run on."""

    def __init__(self, *, shares_results: bool = False) -> None:
        self.runs: list[int] = []
        self.quiet = 0
        self.graphed = GraphedCallable(
            self.work,
            CpuCapturer(),
            fixed=("table",),
            quiet=self.silence,
            shares_results=shares_results,
        )

    @contextmanager
    def silence(self):
        self.quiet += 1
        yield

    def work(self, call: Call) -> Tensor:
        self.runs.append(call.factor)
        return call.given * call.factor + call.table[: call.given.shape[0]]


def test_a_graph_computes_on_what_it_is_given() -> None:
    one, table = Recorded(), torch.tensor([10.0, 20.0, 30.0])
    call = Call(torch.tensor([1.0, 2.0]), table, 3)
    assert one.graphed.graph(call) is None
    graph = one.graphed.capture(call)
    assert (len(one.runs), one.quiet) == (2, 1), "once eagerly, once into the graph"
    assert graph.on(call).tolist() == [13, 26]
    assert one.graphed.graph(Call(torch.tensor([5.0, 6.0]), table, 3)) is graph
    assert graph.on(Call(torch.tensor([5.0, 6.0]), table, 3)).tolist() == [25, 38]
    table[0] = 0
    assert graph.again().tolist() == [15, 38], "a fixed tensor is read where it is"
    assert len(one.runs) == 2
    for other in (Call(torch.zeros(3), table, 3), Call(torch.zeros(2), table, 4)):
        assert one.graphed.graph(other) is None


def test_a_fixed_tensor_that_moved_is_an_error() -> None:
    one = Recorded()
    graph = one.graphed.capture(Call(torch.zeros(2), torch.zeros(2), 1))
    with pytest.raises(InternalError, match="moved"):
        graph.on(Call(torch.zeros(2), torch.zeros(2), 1))


def test_what_lies_in_place_already_is_not_copied() -> None:
    one, table = Recorded(), torch.zeros(2)
    graph = one.graphed.capture(Call(torch.ones(2), table, 2))
    place = graph.inputs[0]
    place.fill_(4)
    assert graph.on(Call(place, table, 2)).tolist() == [8, 8]


def test_sizes_share_inputs_and_results() -> None:
    one, table = Recorded(shares_results=True), torch.zeros(4)
    large = one.graphed.capture(Call(torch.ones(4), table, 1))
    small = one.graphed.capture(Call(torch.ones(2), table, 1))
    assert small.inputs[0].data_ptr() == large.inputs[0].data_ptr()
    assert small.result.data_ptr() == large.result.data_ptr()
    assert small.on(Call(torch.tensor([1.0, 2.0]), table, 1)).tolist() == [1, 2]
    assert large.on(Call(torch.tensor([1.0, 2.0, 3.0, 4.0]), table, 1)).tolist() == [1, 2, 3, 4]
    apart = Recorded()
    results = [apart.graphed.capture(Call(torch.ones(n), table, 1)).result for n in (4, 2)]
    assert results[0].data_ptr() != results[1].data_ptr()
