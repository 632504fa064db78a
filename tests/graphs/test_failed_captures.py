"""A CUDA capture that breaks: torch's allocator must not go on waiting for its end. Shown without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from engine.graphs.capture import CudaCapturer

Pool = tuple[int, int]


@dataclass
class Driver:
    """Stands in for torch's CUDA side. under_way: captures that the allocator waits for; held: pools in use.
    fails: where ending a capture raises: "end" before the allocator is told, "instantiate" after it."""

    fails: str = ""
    pools: int = 0
    under_way: list[Pool] = field(default_factory=list)
    held: list[Pool] = field(default_factory=list)

    def new_pool(self) -> Pool:
        self.pools += 1
        return 0, self.pools

    def begin(self, pool: Pool) -> None:
        self.under_way.append(pool)
        self.held.append(pool)

    def end_allocate(self, device: int, pool: Pool) -> None:
        if pool not in self.under_way:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.under_way.remove(pool)

    def release(self, device: int, pool: Pool) -> None:
        self.held.remove(pool)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver()

    class Graph:
        def capture_begin(self, pool: Pool, capture_error_mode: str) -> None:
            self.pool = pool
            fake.begin(pool)

        def capture_end(self) -> None:
            if fake.fails == "end":
                raise RuntimeError("operation failed due to a previous error during capture")
            fake.end_allocate(0, self.pool)
            if fake.fails == "instantiate":
                raise RuntimeError("out of memory")

        def replay(self) -> None:
            return None

    replaced: dict[str, Callable[..., object]] = {
        "synchronize": lambda device: None,
        "mem_get_info": lambda device: (1 << 30, 1 << 30),
        "graph_pool_handle": fake.new_pool,
        "current_device": lambda: 0,
        "CUDAGraph": Graph,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_allocate, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", fake.release, raising=False)
    return fake


def broken() -> None:
    raise ValueError("the reason")


def test_the_reason_is_what_the_work_raised_and_nothing_is_left_under_way(driver: Driver) -> None:
    capturer = CudaCapturer(torch.device("cuda"))
    driver.fails = "end"
    with pytest.raises(ValueError, match="the reason"):
        capturer.capture(broken)
    assert driver.under_way == []
    assert driver.held == []
    driver.fails = ""
    _, result = capturer.capture(lambda: 7)
    assert result == 7
    assert driver.under_way == []
    assert driver.held == [(0, 2)], "in a pool that the broken capture did not touch"


def test_a_capture_that_can_be_ended_is_ended_once(driver: Driver) -> None:
    """Python failed, not CUDA: the graph's own end releases the pool."""
    capturer = CudaCapturer(torch.device("cuda"))
    with pytest.raises(ValueError, match="the reason"):
        capturer.capture(broken)
    assert driver.under_way == []
    assert driver.held == [(0, 1)], "until the graph is gone"


@pytest.mark.parametrize("where", ["end", "instantiate"])
def test_an_end_that_fails_is_cleaned_up_too(driver: Driver, where: str) -> None:
    capturer = CudaCapturer(torch.device("cuda"))
    driver.fails = where
    with pytest.raises(RuntimeError, match="previous error" if where == "end" else "out of memory"):
        capturer.capture(lambda: 7)
    assert driver.under_way == []
    assert driver.held == ([] if where == "end" else [(0, 1)]), "released once, by us or with the graph"
