"""How results reach the host: out of memory that is used again, through buffers that go round."""

from __future__ import annotations

import pytest
import torch

from engine.batch import Mode, ScheduledStep
from engine.device_queue import DeferredQueue, DeviceQueue, Published, Ticket, Work
from engine.futures import FutureMap, published
from engine.metrics import EngineMetrics, rates
from engine.pinned import PinnedRing


def test_results_in_reused_memory_are_taken_before_the_next_work_writes_there() -> None:
    place, queue = torch.zeros(2), DeferredQueue()

    def work(value: float, reused: bool) -> Work:
        def run() -> Published:
            place.fill_(value)
            return Published((place,), reused=reused)

        return run

    for reused, first in ((True, [1, 1]), (False, [2, 2])):
        tickets = [queue.submit(work(value, reused)) for value in (1, 2)]
        queue.synchronize()
        assert tickets[0].result()[0].tolist() == first
        assert tickets[1].result()[0].tolist() == [2, 2]


def test_a_steps_results_keep_their_mark() -> None:
    one = torch.ones(1)
    assert published((one,), None, None, True).reused
    assert not published((one,), None, None).reused
    with_mirror = published((one,), one, None, True)
    assert with_mirror.tensors[1] is not one, "the mirror is a copy: the lengths go on changing"


def test_pinned_buffers_go_round() -> None:
    ring = PinnedRing(pinned=False)
    like = (torch.zeros(3, 7, dtype=torch.int32), torch.zeros(5, dtype=torch.float32))
    first = ring.lease(like)
    assert [(t.shape, t.dtype) for t in first.tensors] == [(t.shape, t.dtype) for t in like]
    for value, tensor in enumerate(first.tensors):
        tensor.fill_(value + 1)
    assert [t.unique().tolist() for t in first.tensors] == [[1], [2]], "they do not overlap"
    second = ring.lease(like)
    assert second.buffer.data_ptr() != first.buffer.data_ptr(), "the first is still out"
    ring.give_back(first)
    assert ring.lease(like[:1]).buffer.data_ptr() == first.buffer.data_ptr()


def test_a_buffer_too_small_stays_and_a_larger_one_comes() -> None:
    ring = PinnedRing(pinned=False)
    small = ring.lease((torch.zeros(8),))
    ring.give_back(small)
    large = ring.lease((torch.zeros(1 << 14),))
    assert large.buffer.numel() >= 4 << 14
    assert ring.lease((torch.zeros(8),)).buffer.data_ptr() == small.buffer.data_ptr()
    assert ring.lease(()).tensors == ()


class _Ticket(Ticket):
    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name = log, name

    def ready(self) -> bool:
        return True

    def result(self) -> tuple[torch.Tensor, ...]:
        return (torch.tensor([[5, 1, 0, 0, 0, 0]], dtype=torch.int32),)

    def release(self) -> None:
        self._log.append(self._name)


class _Queue(DeviceQueue):
    def __init__(self) -> None:
        self.log: list[str] = []
        self.count = 0

    def submit(self, work: Work) -> Ticket:
        self.count += 1
        return _Ticket(self.log, f"step {self.count}")

    def synchronize(self) -> None:
        return None

    def busy_seconds(self) -> float:
        return 0.5 * self.count


def test_a_result_is_given_back_a_step_after_it_was_read() -> None:
    """Until then somebody may ask for the mirror of the lengths that came with it."""
    queue, metrics = _Queue(), EngineMetrics()
    futures = FutureMap(queue, metrics, needs_cpu_seq_lens=False, debug=False)
    step = ScheduledStep(1, Mode.VERIFY, (1,), (4,), (1,), (True,), 1)
    handles = [futures.publish(step, lambda: Published(()), None) for _ in range(3)]
    seen = []
    for handle in handles:
        assert futures.resolve(handle).tokens == [[5]]
        seen.append(list(queue.log))
    assert seen == [[], ["step 1"], ["step 1", "step 2"]]
    assert metrics.device_seconds == 1.5


def test_the_devices_share_of_the_time_is_a_rate() -> None:
    counts = dict.fromkeys(EngineMetrics().snapshot(), 0)
    assert rates(counts)["forward_occupancy"] is None
    assert rates({**counts, "device_seconds": 3.0, "serving_seconds": 4.0})["forward_occupancy"] == 0.75


def test_the_deferred_queue_counts_what_it_ran() -> None:
    queue = DeferredQueue()
    queue.submit(lambda: Published((torch.zeros(1),)))
    assert queue.busy_seconds() == 0
    queue.synchronize()
    assert queue.busy_seconds() > 0


@pytest.mark.gpu
def test_a_stream_is_timed_without_waiting() -> None:
    from engine.device_queue import CudaQueue

    queue = CudaQueue(torch.device("cuda"))
    place = torch.zeros(1 << 24, device="cuda")

    def work() -> Published:
        place.add_(1)
        return Published((place[:4],), reused=True)

    tickets = [queue.submit(work) for _ in range(20)]
    assert [ticket.result()[0].tolist() for ticket in tickets] == [[n + 1] * 4 for n in range(20)]
    queue.synchronize()
    assert 0 < queue.busy_seconds() < 5
    buffers = {ticket.result()[0].data_ptr() for ticket in tickets}
    assert len(buffers) == 20
    for ticket in tickets:
        ticket.release()
    assert queue.submit(work).result()[0].data_ptr() in buffers
