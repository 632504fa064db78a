"""FutureMap: results are consumed once and in order; the host mirror exists only for those who declare it."""

from __future__ import annotations

import pytest
import torch
from support.engines import TINY, make, run

from backends.torch_sdpa import TorchSDPA
from engine.batch import ForwardBatch, HostLens, Mode, ScheduledStep, SeqLens
from engine.device_queue import DeferredQueue, Published
from engine.errors import InternalError
from engine.futures import POISONED, FutureMap
from engine.metrics import EngineMetrics
from engine.params import SamplingParams


def _step(step_id: int) -> ScheduledStep:
    return ScheduledStep(step_id, Mode.VERIFY, (1, 2), (5, 9), (2, 2), (True, True), 2)


def _work(packed: torch.Tensor):
    return lambda: Published((packed,))


def _futures(*, debug: bool = True) -> tuple[FutureMap, EngineMetrics]:
    metrics = EngineMetrics()
    return FutureMap(DeferredQueue(), metrics, needs_cpu_seq_lens=False, debug=debug), metrics


def test_results_are_cut_to_what_was_emitted() -> None:
    futures, _ = _futures(debug=False)
    packed = torch.tensor([[11, 12, 2, 0, 1, 1, 0], [13, 99, 1, 1, 0, 1, 9]], dtype=torch.int32)
    result = futures.resolve(futures.publish(_step(1), _work(packed), None))
    assert (result.tokens, result.finish, result.accepted) == ([[11, 12], [13]], [0, 1], [1, 0])


def test_debug_poisons_a_consumed_buffer_and_refuses_a_second_reader() -> None:
    futures, _ = _futures()
    packed = torch.tensor([[11, 12, 2, 0, 1, 1, 0], [13, 99, 1, 1, 0, 1, 9]], dtype=torch.int32)
    handle = futures.publish(_step(1), _work(packed), "inputs")
    assert futures.resolve(handle).tokens == [[11, 12], [13]]
    assert torch.all(packed == POISONED)
    assert handle.owned is None, "the step's inputs live exactly as long as the step"
    with pytest.raises(InternalError, match="consumed twice"):
        futures.resolve(handle)


def test_debug_refuses_results_out_of_order() -> None:
    futures, _ = _futures()
    first, second = (
        futures.publish(_step(i), _work(torch.zeros(2, 7, dtype=torch.int32)), None) for i in (1, 2)
    )
    futures.resolve(second)
    with pytest.raises(InternalError, match="after"):
        futures.resolve(first)


def test_a_wait_with_a_later_step_queued_is_back_pressure() -> None:
    futures, metrics = _futures(debug=False)
    first, second = (
        futures.publish(_step(i), _work(torch.zeros(2, 7, dtype=torch.int32)), None) for i in (1, 2)
    )
    futures.resolve(first)
    assert (metrics.host_waits, metrics.back_pressure_waits) == (0, 1)
    futures.resolve(second)
    assert (metrics.host_waits, metrics.back_pressure_waits) == (1, 1)


def test_asking_for_an_absent_mirror_names_the_asker() -> None:
    with pytest.raises(InternalError, match="my backend asked for exact host lengths"):
        SeqLens(torch.zeros(1), (4,)).exact("my backend")


@pytest.mark.parametrize("loop", ["none", "future"])
def test_a_part_that_declares_exact_gets_the_true_lengths(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params, prompts = SamplingParams(max_tokens=12), [[i, 2, 3] * (i + 1) for i in range(5)]
    plain = run(prompts, params, *TINY)
    seen: list[int] = []
    prepare = TorchSDPA.init_forward_metadata

    def watched(self: TorchSDPA, batch: ForwardBatch) -> None:
        exact = batch.seq_lens.exact("the test's backend")
        assert list(exact) == batch.seq_lens.device.tolist()
        assert all(true <= bound for true, bound in zip(exact, batch.seq_lens.bound, strict=True))
        seen.append(len(exact))
        prepare(self, batch)

    monkeypatch.setattr(TorchSDPA, "init_forward_metadata", watched)
    with pytest.raises(InternalError, match="the test's backend"):
        run(prompts, params, *TINY, f"overlap={loop}")
    monkeypatch.setattr(TorchSDPA, "host_lens", HostLens.EXACT)
    with make(*TINY, f"overlap={loop}") as llm:
        outputs = llm.generate(prompts, params)
    assert [o.completions[0].token_ids for o in outputs] == [ids for ids, _, _ in plain]
    assert seen.count(5) >= 12, "a prefill and eleven decode steps at least"
