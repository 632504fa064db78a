"""How many device operations a decode step is made of: each is a node of its graph, and none is free."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.engines import TINY, make

from engine.batch import Mode, ScheduledStep
from engine.graphs.recording import record
from engine.sampling.asked import SamplingClass
from engine.step import Step
from engine.upload import BatchRows

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="counted on the CPU's recorder")
BATCH = 3
PLAIN = ScheduledStep(
    step_id=0,
    mode=Mode.VERIFY,
    rows=(0,) * BATCH,
    bounds=(8,) * BATCH,
    query_lens=(1,) * BATCH,
    emits=(True,) * BATCH,
    width=1,
)


def operations(layers: int, sampling: SamplingClass) -> int:
    """Of a plain decode step over padding rows, model=tiny with Triton kernels; views cost nothing."""
    with make(*TINY, "attention=triton", f"model.layers={layers}", "scheduler.max_running=4") as llm:
        step: Step = llm._container.step()._inner
        batch = BatchRows(torch.zeros(BATCH, dtype=torch.int64), torch.arange(BATCH + 1, dtype=torch.int32))
        scheduled = replace(PLAIN, sampling=sampling)
        with torch.inference_mode():
            step.decode(scheduled, batch, None)  # a first run builds what later ones keep
            recording, _ = record(lambda: step.decode(scheduled, batch, None))
    return len(recording.operations)


@pytest.mark.parametrize(
    ("sampling", "most"),
    [(SamplingClass(), 12), (SamplingClass(top_logprobs=0), 16), (SamplingClass(sampled=True), 80)],
    ids=["greedy", "logprobs", "sampled"],
)
def test_operations_around_and_in_the_layers(sampling: SamplingClass, most: int) -> None:
    two, three = operations(2, sampling), operations(3, sampling)
    layer = three - two
    assert layer <= 9  # four products, two norms, rotation with store, attention, SwiGLU
    assert two - 2 * layer <= most
