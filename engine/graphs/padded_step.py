"""A decode step on a batch that is padded with row 0 up to a captured size, its results cut back.

Knows the step by its contract; which parts of it are graphs is theirs to know.
"""

from __future__ import annotations

from dataclasses import replace

from engine.batch import Mode, ScheduledStep
from engine.graphs.hesitation import Hesitation
from engine.graphs.sizes import BatchSizes
from engine.graphs.static_rows import StaticRows
from engine.step import Step, StepOutput
from engine.upload import StepInputs


class PaddedStep(Step):
    """Another step, whose decode steps see batches of a few sizes only, at fixed addresses."""

    def __init__(self, inner: Step, sizes: BatchSizes, rows: StaticRows, hesitation: Hesitation) -> None:
        self._inner = inner
        self._sizes = sizes
        self._rows = rows
        self._hesitation = hesitation

    def prepare(self, step: ScheduledStep) -> None:
        """A step on padding rows: every graph that it comes upon is captured."""
        size = self._sizes.fit(len(step.rows))
        if size is None:
            return
        blank = padded(replace(step, rows=(), bounds=(), query_lens=(), emits=()), size)
        lens = (0,) * size
        with self._rows.blank(), self._hesitation.at_once():
            out = self._inner.decode(blank, self._rows.padded(size, step.width), lens)
            if out.observe is not None:
                out.observe()

    def run(self, step: ScheduledStep, inputs: StepInputs, host_lens: tuple[int, ...] | None) -> StepOutput:
        count = len(step.rows)
        if step.mode is not Mode.VERIFY or not count:
            return self._inner.run(step, inputs, host_lens)
        size = self._sizes.fit(count)
        if size is None:
            self._hesitation.too_large(count)
            return self._inner.run(step, inputs, host_lens)
        self._inner.write(inputs)
        self._rows.load(inputs.batch)
        lens = None if host_lens is None else host_lens + (0,) * (size - count)
        out = self._inner.decode(padded(step, size), self._rows.padded(size, step.width), lens)
        cut = tuple(part[: count * step.width] for part in out.logprobs)
        return replace(out, packed=out.packed[:count], logprobs=cut)


def padded(step: ScheduledStep, size: int) -> ScheduledStep:
    """The same with row 0, which holds nothing, up to `size` requests."""
    more = size - len(step.rows)
    return replace(
        step,
        rows=step.rows + (0,) * more,
        bounds=step.bounds + (0,) * more,
        query_lens=step.query_lens + (step.width,) * more,
        emits=step.emits + (True,) * more,
    )
