"""The parts of a step with a clock around them, by their own contracts: drafter, target, the step itself.

While StageTimes is off, each costs one call more. Knows which call belongs to which stage.
"""

from __future__ import annotations

from engine.batch import DraftTree, ForwardBatch, Mode, ScheduledStep
from engine.runner import ForwardResult, ModelRunner
from engine.stage_times import StageTimes
from engine.step import Step, StepOutput
from engine.upload import StepInputs
from speculative.base import Speculator
from speculative.views import DraftView, Observed, PrefillSeen


class TimedSpeculator(Speculator):
    """propose is "draft", observe is "learn"; the rest is the inner one's."""

    reads_cpu_seq_lens = False  # its inner one declares what it reads

    def __init__(self, inner: Speculator, stages: StageTimes) -> None:
        self.plan = inner.plan
        self._inner = inner
        self._stages = stages

    def propose(self, view: DraftView) -> DraftTree:
        with self._stages.stage("draft"):
            return self._inner.propose(view)

    def observe(self, view: DraftView, seen: Observed) -> None:
        with self._stages.stage("learn"):
            self._inner.observe(view, seen)

    def prefill(self, view: DraftView, seen: PrefillSeen) -> None:
        self._inner.prefill(view, seen)


class TimedRunner(ModelRunner):
    """The target's decode passes are "verify"."""

    def __init__(self, inner: ModelRunner, stages: StageTimes) -> None:
        super().__init__(inner.model, inner.attention, inner.pool, inner.driver)
        self._inner = inner
        self._stages = stages

    def forward(self, batch: ForwardBatch) -> ForwardResult:
        if batch.mode is not Mode.VERIFY:
            return self._inner.forward(batch)
        with self._stages.stage("verify"):
            return self._inner.forward(batch)


class TimedStep(Step):
    """A decode step up to the point where its results leave is "step"."""

    def __init__(self, inner: Step, stages: StageTimes) -> None:
        self._inner = inner
        self._stages = stages

    def prepare(self, step: ScheduledStep) -> None:
        self._inner.prepare(step)

    def run(self, step: ScheduledStep, inputs: StepInputs, host_lens: tuple[int, ...] | None) -> StepOutput:
        if step.mode is not Mode.VERIFY:
            return self._inner.run(step, inputs, host_lens)
        with self._stages.stage("step"):
            return self._inner.run(step, inputs, host_lens)
