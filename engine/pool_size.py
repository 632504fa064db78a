"""How many tokens the KV pool holds and how long a request may be, where the config leaves that open.

Numbers only, free of torch: who asks brings what is free and what else will be needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import UserError
from engine.memory import MemoryPlan, human
from engine.scheduling.reservation import Reservation

AUTO = "auto"
CPU_POOL_BYTES = 256 << 20  # automatic KV pool on a CPU, which shares its memory with everything else
CPU_POOL_TOKENS = 65536
MARGIN_BYTES = 512 << 20  # libraries' workspaces, compiled kernels, gaps between allocations
MARGIN_SHARE = 0.02  # of the free memory: gaps grow with what is allocated


@dataclass(frozen=True)
class Owned:
    """How many KV slots a request comes to own, in whole pages: more than it has tokens, since a step with
    drafts writes ahead of what will be accepted."""

    page_size: int
    width: int = 1
    draft_slots: int = 0

    def slots(self, context: int) -> int:
        """Of a request of `context` tokens."""
        most = max(context, Reservation(self.width, self.draft_slots).worst(context))
        return -(-most // self.page_size) * self.page_size

    def longest(self, tokens: int) -> int:
        """The longest request that a pool of `tokens` holds; below 2 there is none."""
        whole = tokens // self.page_size * self.page_size
        return whole - max(0, Reservation(self.width, self.draft_slots).worst(0))


@dataclass(frozen=True)
class Free:
    """Device memory that is free once the weights are there; name: of the device, for messages."""

    bytes: int
    name: str

    @property
    def margin(self) -> int:
        """What is never planned for."""
        return MARGIN_BYTES + int(MARGIN_SHARE * self.bytes)


def auto_context(max_context: int | str, longest: int) -> int:
    """ "auto": what the model was made for."""
    return longest if max_context == AUTO else min(int(max_context), longest)


def cpu_tokens(owned: int, running: int, per_token: int) -> int:
    """Of an automatic pool on a CPU: one full context at least, every row's context at most. owned: slots of
    the longest request."""
    return min(owned * running, max(owned, min(CPU_POOL_BYTES // per_token, CPU_POOL_TOKENS)))


def free_tokens(free: Free, plan: MemoryPlan, per_token: int, page_size: int) -> int:
    """What fits into the free memory beside the rest of the plan, in whole pages and behind the padding page;
    0 where nothing does."""
    slots = (free.bytes - plan.beside) // per_token
    return max(0, slots // page_size - 1) * page_size


def gpu_tokens(asked: int | str, owned: Owned, context: int, running: int, most: int) -> int:
    """Of a pool on a GPU. asked: cache.tokens; most: from `free_tokens`."""
    return min(owned.slots(context) * running, most) if asked == AUTO else int(asked)


def check_fits(
    asked: tuple[int | str, int | str], context: int, owned: Owned, most: int, free: Free, plan: MemoryPlan
) -> None:
    """UserError where a pool as asked for, or one request of the asked length, does not fit. asked:
    (cache.tokens, cache.max_context); context: what the latter comes to."""
    tokens, max_context = asked
    ways = "a smaller scheduler.max_running or scheduler.chunk_tokens, or a smaller model"
    have = (
        f"{free.name} has {human(free.bytes)} free beside the weights, of which {human(plan.beside)} are "
        f"needed for all but the KV pool"
    )
    if tokens != AUTO and int(tokens) > most:
        raise UserError(f"cache.tokens={tokens} does not fit: {have}; use cache.tokens={most}, {ways}")
    longest = owned.longest(most)
    if tokens == AUTO and longest < 2:
        raise UserError(f"cache.tokens=auto finds no room for a KV pool: {have}; use {ways}")
    if tokens == AUTO and max_context != AUTO and owned.slots(context) > most:
        raise UserError(
            f"cache.max_context={max_context} does not fit, not even one request of that length: {have}; "
            f"use cache.max_context={longest} or auto, {ways}"
        )
