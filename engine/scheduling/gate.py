"""What a request needs at most, found when it arrives; one that can never run is refused there.

Knows limits only, not what is free at the moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UserError
from engine.request import Request
from engine.scheduling.plan import SamplingClasses
from engine.scheduling.reservation import Reservation


@dataclass(frozen=True)
class Gate:
    """max_context: tokens of the longest request, answer included. pool: tokens that the KV pool holds."""

    reservation: Reservation
    classes: SamplingClasses
    max_context: int
    pool: int
    eos_ids: tuple[int, ...]

    def size(self, request: Request) -> None:
        """Resolve lengths and sampling values. Raises UserError naming the setting that is in the way."""
        self._check_prompt(request)
        params, prompt_len = request.params, request.prompt_len
        request.sampling = params.row(prompt_len, self.eos_ids, request.index, request.seed, self.max_context)
        request.class_bit = self.classes.bit(params.sampling_class())
        request.max_len = request.sampling.max_len
        request.worst = self.reservation.worst(request.max_len)
        if request.worst > self.pool:
            wide = self.reservation.need
            drafts = f", {wide} of them for a decode step and its drafts" if wide > 1 else ""
            way = "lower sampling.max_tokens" if wide < 2 else "draft fewer tokens (spec.*)"
            raise UserError(
                f"the prompt's {prompt_len} tokens and up to {request.max_len - prompt_len} more need "
                f"{request.worst} tokens of KV{drafts}, the pool has {self.pool}: raise cache.tokens, or "
                f"{way}"
            )

    def _check_prompt(self, request: Request) -> None:
        if not request.prompt_len:
            raise UserError(f"the prompt of request {request.id!r} is empty: give at least one token")
        if request.prompt_len >= self.max_context:
            raise UserError(
                f"the prompt has {request.prompt_len} tokens, cache.max_context={self.max_context} leaves no "
                "place for an answer: shorten the prompt, or raise cache.max_context"
            )
