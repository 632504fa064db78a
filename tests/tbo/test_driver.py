"""How two halves are driven: in turns, the second on a stream of its own, forked before and joined behind."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from test_split import extend_batch, verify_batch
from torch import Tensor

from backends.base import AttentionBackend, ModelOps
from backends.two_batch import TwoBatchAttention
from engine.batch import ForwardBatch, HostLens, LayerKV
from engine.metrics import EngineMetrics
from engine.models.base import AttentionCall, Pass
from engine.passes import Passes
from engine.side_stream import SideStream
from engine.two_batches.driver import TwoBatches
from engine.two_batches.split import Cutter

LAYERS = 2
KV = LayerKV(0, torch.zeros(1), torch.zeros(1))


class Stream(SideStream):
    """Notes what happens, and on which line."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.current = "main"
        self.watched: list[weakref.ref[Tensor]] = []
        self.alive_at_join = 0

    def fork(self) -> None:
        self.log.append("fork")

    def join(self) -> None:
        self.alive_at_join = sum(ref() is not None for ref in self.watched)
        self.log.append("join")

    @contextmanager
    def use(self) -> Iterator[None]:
        self.current = "side"
        yield
        self.current = "main"


class Attention(AttentionBackend):
    host_lens = HostLens.NONE

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self.stream = stream
        self.ops: ModelOps = object()  # type: ignore[assignment]

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        self.stream.log.append(f"plan {self.name} {batch.size} on {self.stream.current}")

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        self.stream.log.append(f"attend {self.name} on {self.stream.current}")
        return q + 1


class Counting(Passes):
    """hidden = the token ids, one more for each layer."""

    def __init__(self, stream: Stream, layers: int = LAYERS) -> None:
        self.stream = stream
        self.layers = layers
        self.begun: list[tuple[int, ModelOps]] = []

    def begin(self, batch: ForwardBatch, ops: ModelOps, lane: int = 0) -> Pass:
        self.begun.append((lane, ops))
        self.stream.watched += [weakref.ref(t) for t in (batch.input_ids, batch.rows, batch.positions)]
        return self._run(batch)

    def _run(self, batch: ForwardBatch) -> Pass:
        x = batch.input_ids.float().unsqueeze(1)
        for _ in range(self.layers):
            x = yield AttentionCall(x, x, x, KV)
        return x, 2 * x


def driven(
    layers: int = LAYERS, cutter: Cutter | None = None
) -> tuple[TwoBatches, Stream, Counting, EngineMetrics]:
    stream, metrics = Stream([]), EngineMetrics()
    pair = TwoBatchAttention(Attention("a", stream), Attention("b", stream), lambda batch: (batch,))
    passes = Counting(stream, layers)
    driver = TwoBatches(passes, pair, cutter or Cutter(2, 2), metrics, lambda device: stream)
    return driver, stream, passes, metrics


def test_halves_take_turns_and_meet_at_the_end() -> None:
    driver, stream, passes, metrics = driven()
    batch = verify_batch(5, 2)
    hidden, aux = driver.run(batch)
    assert stream.log == [
        "fork",
        "plan a 3 on main",
        "plan b 2 on side",
        *["attend a on main", "attend b on side"] * LAYERS,
        "join",
    ]
    assert [lane for lane, _ in passes.begun] == [0, 1]
    assert passes.begun[0][1] is not passes.begun[1][1]
    assert hidden.squeeze(1).tolist() == [i + LAYERS for i in range(10)]
    assert aux is not None
    assert torch.equal(aux, 2 * hidden)
    assert (metrics.split_passes, metrics.unsplit_passes) == (1, 0)


def test_what_the_side_works_on_lives_until_the_join() -> None:
    """Freed earlier, its memory could be written by the other stream while it is read."""
    driver, stream, *_ = driven()
    driver.run(verify_batch(4, 1))
    assert stream.alive_at_join == len(stream.watched) == 6


@pytest.mark.parametrize("batch", [verify_batch(1, 3), extend_batch(9), verify_batch(0, 1)])
def test_what_cannot_be_split_runs_on_the_first_child_and_the_main_line(batch: ForwardBatch) -> None:
    driver, stream, passes, metrics = driven()
    hidden, _ = driver.run(batch)
    assert hidden.shape[0] == batch.input_ids.shape[0]
    assert stream.log == [f"plan a {batch.size} on main", *["attend a on main"] * LAYERS]
    assert [lane for lane, _ in passes.begun] == [0]
    assert (metrics.split_passes, metrics.unsplit_passes) == (0, 1)


@pytest.mark.parametrize(
    ("batch", "split"),
    [
        (verify_batch(4, 2), True),
        (verify_batch(3, 4), False),  # too few requests
        (verify_batch(4, 1), False),  # too few tokens
        (extend_batch(1, 1, 1, 5), True),
        (extend_batch(4, 4), False),
    ],
)
def test_the_threshold_decides(batch: ForwardBatch, split: bool) -> None:
    driver, _, _, metrics = driven(cutter=Cutter(4, 8))
    driver.run(batch)
    assert (metrics.split_passes, metrics.unsplit_passes) == (int(split), int(not split))


def test_a_pass_that_never_stops_is_joined_too() -> None:
    driver, stream, *_ = driven(layers=0)
    hidden, _ = driver.run(extend_batch(2, 3))
    assert hidden.squeeze(1).tolist() == [0, 1, 2, 3, 4]
    assert stream.log == ["fork", "plan a 1 on main", "plan b 1 on side", "join"]
