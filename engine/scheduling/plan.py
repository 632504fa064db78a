"""Writes down what was decided for a step, as the device side reads it. Decides nothing.

Legend: chunk = (request, tokens of its prompt that the step computes).
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import Mode, NewRow, ScheduledStep
from engine.request import Request
from engine.sampling.asked import SamplingClass
from speculative.width import WidthChoice

Pages = Sequence[tuple[int, int, int]]


class SamplingClasses:
    """The union of a batch's sampling classes, by one bit operation a request."""

    def __init__(self) -> None:
        self._bits: dict[SamplingClass, int] = {}
        self._unions: dict[int, SamplingClass] = {0: SamplingClass()}

    def bit(self, sampling: SamplingClass) -> int:
        """The bit that stands for a class."""
        bit = self._bits.setdefault(sampling, 1 << len(self._bits))
        self._unions.setdefault(bit, sampling)
        return bit

    def union(self, bits: int) -> SamplingClass:
        """What a batch must compute whose requests have these bits."""
        found = self._unions.get(bits)
        if found is None:
            found = SamplingClass()
            for sampling, bit in self._bits.items():
                found = found | sampling if bits & bit else found
            self._unions[bits] = found
        return found


def verify_step(
    step_id: int, requests: Sequence[Request], choice: WidthChoice, pages: Pages, classes: SamplingClasses
) -> ScheduledStep:
    """A decode step of `choice.width` tokens a request."""
    bits = 0
    for request in requests:
        bits |= request.class_bit
    count = len(requests)
    return ScheduledStep(
        step_id,
        Mode.VERIFY,
        tuple([request.row for request in requests]),
        tuple([request.bound for request in requests]),
        (choice.width,) * count,
        (True,) * count,
        choice.width,
        choice.resume,
        (),
        tuple(pages),
        classes.union(bits),
    )


def extend_step(
    step_id: int,
    chunks: Sequence[tuple[Request, int]],
    new: Sequence[Request],
    classes: SamplingClasses,
) -> ScheduledStep:
    """A prefill step; `new` requests enter the table with all their pages."""
    emits = tuple(request.bound + count == request.prefill_end for request, count in chunks)
    bits = 0
    for (request, _), emit in zip(chunks, emits, strict=True):
        bits |= request.class_bit if emit else 0
    return ScheduledStep(
        step_id,
        Mode.EXTEND,
        tuple(request.row for request, _ in chunks),
        tuple(request.bound for request, _ in chunks),
        tuple(count for _, count in chunks),
        emits,
        0,
        False,
        tuple(_new_row(request) for request in new),
        tuple((request.row, i, page) for request in new for i, page in enumerate(request.pages)),
        classes.union(bits),
    )


def _new_row(request: Request) -> NewRow:
    return NewRow(request.row, request.known_ids(), request.bound, request.prompt_len, request.sampling)
