"""The deferred CPU queue behaves like a device: in order, and nothing before it is asked for."""

import pytest
import torch

from engine.device_queue import DeferredQueue, Published


def _work(log: list[str], name: str, after: bool = False):
    def run() -> Published:
        log.append(name)
        return Published((torch.tensor([len(log)]),), (lambda: log.append(name + "+")) if after else None)

    return run


def test_nothing_runs_before_its_result_is_demanded() -> None:
    queue, log = DeferredQueue(), []
    tickets = [queue.submit(_work(log, name)) for name in "abc"]
    assert log == []
    assert not tickets[0].ready()
    assert tickets[1].result()[0].tolist() == [2]
    assert log == ["a", "b"], "first in, first out, and c stays queued"
    assert tickets[0].ready()
    assert tickets[1].ready()
    assert not tickets[2].ready()
    assert tickets[0].result()[0].tolist() == [1]


def test_after_runs_between_a_step_and_the_next() -> None:
    queue, log = DeferredQueue(), []
    queue.submit(_work(log, "a", after=True))
    queue.submit(_work(log, "b"))
    queue.synchronize()
    assert log == ["a", "a+", "b"]


def test_a_failed_step_fails_its_own_ticket_each_time() -> None:
    queue, log = DeferredQueue(), []

    def fail() -> Published:
        raise ValueError("broken kernel")

    bad, good = queue.submit(fail), queue.submit(_work(log, "b"))
    for _ in range(2):
        with pytest.raises(ValueError, match="broken kernel"):
            bad.result()
    assert good.result()[0].tolist() == [1]


def test_work_runs_without_autograd() -> None:
    queue = DeferredQueue()
    weight = torch.ones(1, requires_grad=True)
    assert not queue.submit(lambda: Published((weight * 2,))).result()[0].requires_grad
