"""The CPU's stand-in for CUDA graphs: it replays what was captured, and refuses what CUDA would refuse."""

from __future__ import annotations

import gc

import pytest
import torch

from engine.errors import InternalError
from engine.graphs.capture import CpuCapturer, make_capturer
from engine.graphs.recording import record

READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "int": lambda x: int(x[0]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 1],
    "mask write": lambda x: x.__setitem__(x > 1, 0),
    "masked_select": lambda x: torch.masked_select(x, x > 1),
    "repeat without a sum": lambda x: torch.repeat_interleave(x, x),
    "unique": lambda x: torch.unique(x),
    "equal": lambda x: torch.equal(x, x + 1),
    "where": lambda x: torch.where(x > 1),
    "number at indices": lambda x: x.__setitem__(x.clamp_max(2), 0),
    "host data": lambda x: x + torch.tensor([1, 2, 3]),
    "loop over values": lambda x: list(range(x[0])),
}
WORKS = {
    "arithmetic": lambda x: (x * 2 + 1).cumsum(0),
    "where": lambda x: torch.where(x > 1, x, 0),
    "gather": lambda x: x[x.clamp_max(2)],
    "scatter": lambda x: torch.zeros(4, dtype=x.dtype).scatter_add_(0, x.clamp_max(3), x),
    "scalar": lambda x: x.masked_fill(x > 1, -1),
    "set a place": lambda x: _set(x.clone(), 0),
    "set a cell": lambda x: torch.zeros_like(x).index_fill_(0, torch.zeros_like(x[:1]), 7),
    "write by index": lambda x: x.clone().index_put_((x.clamp_max(2),), x, accumulate=True),
    "views": lambda x: x.view(3, 1).expand(3, 2).t().contiguous(),
    "split": lambda x: torch.cat(tuple(reversed((x * x).split(1)))),
    "repeat with a sum": lambda x: torch.repeat_interleave(x, x, output_size=6),
    "out=": lambda x: torch.add(x, x, out=torch.empty_like(x)),
    "linear": lambda x: torch.nn.functional.linear(x.float(), torch.ones(2, 3)),
    "sort": lambda x: x.sort(descending=True, stable=True).indices,
    "topk": lambda x: x.topk(2).values,
}


def _set(x: torch.Tensor, value: int) -> torch.Tensor:
    x[1] = value
    return x


@pytest.mark.parametrize("name", READS)
def test_a_read_on_the_host_is_refused(name: str) -> None:
    with torch.inference_mode():
        place = torch.tensor([1, 2, 3])
        with pytest.raises(InternalError, match="inside a graph"):
            record(lambda: READS[name](place))


@pytest.mark.parametrize("name", WORKS)
def test_a_replay_computes_anew(name: str) -> None:
    """What a replay gives for other inputs equals what the work gives for them."""
    work = WORKS[name]
    with torch.inference_mode():
        place = torch.tensor([1, 2, 3])
        graph, result = CpuCapturer().capture(lambda: work(place))
        assert torch.equal(result, work(torch.tensor([1, 2, 3])))
        place.copy_(torch.tensor([3, 1, 2]))
        graph.replay()
        assert torch.equal(result, work(torch.tensor([3, 1, 2])))


def test_what_python_computed_is_part_of_the_graph() -> None:
    step = 1
    place = torch.zeros(2)
    graph, result = CpuCapturer().capture(lambda: place + step)
    step = 5
    graph.replay()
    assert result.tolist() == [1, 1]


def test_work_in_place_accumulates_over_replays() -> None:
    total = torch.zeros(1)
    graph, _ = CpuCapturer().capture(lambda: total.add_(1))
    graph.replay()
    graph.replay()
    assert total.item() == 3, "a recording runs the work once itself"


def test_nothing_is_collected_inside_a_capture() -> None:
    """A collection could free graphs, events or pinned memory, which CUDA refuses inside a capture."""
    seen: list[bool] = []

    def work() -> torch.Tensor:
        seen.append(gc.isenabled())
        return torch.zeros(1)

    assert gc.isenabled()
    CpuCapturer().capture(work)
    with pytest.raises(ValueError, match="broken"):
        CpuCapturer().capture(_broken)
    assert seen == [False]
    assert gc.isenabled()


def _broken() -> None:
    raise ValueError("broken")


def test_costs_are_booked_by_phase() -> None:
    capturer = make_capturer(torch.device("cpu"))
    capturer.capture(lambda: torch.zeros(1), "step")
    capturer.beside().capture(lambda: torch.zeros(1), "prefill")
    capturer.capture(lambda: torch.zeros(1), "step")
    assert {name: cost.captures for name, cost in capturer.costs.items()} == {"step": 2, "prefill": 1}
    assert all(cost.seconds > 0 for cost in capturer.costs.values())
