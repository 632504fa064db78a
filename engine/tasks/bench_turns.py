"""Who is measured when: a configuration and plain decoding take turns, so that a machine that gets slower or
faster meanwhile does so for both. Importable without torch. Knows sides and memory; no figure.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

from engine.errors import UserError
from engine.memory import human
from engine.tasks.bench_side import Side
from engine.tasks.interrupts import StopFlag
from engine.tasks.memory_use import free_memory_bytes, is_out_of_memory, peak_memory_bytes

WAY_OUT = "a smaller cache.tokens or scheduler.max_running takes less"


@dataclass(frozen=True)
class Order:
    """peak: memory that the measured side took, in bytes, before there was another. alone: why the two did
    not take turns, and the way out; empty where they did, or where there is one side only. failed: why plain
    decoding could not be run to its end after the other one either."""

    peak: int
    alone: str = ""
    failed: str = ""


def run_alone(own: Side, repeats: int) -> Order:
    """All repeats of one side."""
    own.prepare()
    for _ in range(repeats):
        own.once()
    return Order(peak_memory_bytes(own.engine.device))


def run_both(own: Side, plain: Side, repeats: int, warmup: int, stop: StopFlag) -> Order:
    """`own` and `plain` in turns: A B, B A, A B and so on, each pair close in time. Where two engines do not
    fit into memory, plain decoding comes after all the others, as the Order says."""
    own.prepare()
    if not warmup:  # a run makes known what the engine takes; the pair's other half follows the building
        own.once()
    peak = peak_memory_bytes(own.engine.device)
    if stop.requested:
        return Order(peak)
    alone = _no_room(own) or _refused(plain)
    if alone:
        return Order(peak, alone, _one_after_the_other(own, plain, repeats, stop))
    _in_turns(own, plain, repeats)
    return Order(peak)


def _in_turns(own: Side, plain: Side, repeats: int) -> None:
    for number in range(repeats):
        for side in (own, plain) if number % 2 == 0 else (plain, own):
            if len(side.runs) <= number:
                side.once()


def _one_after_the_other(own: Side, plain: Side, repeats: int, stop: StopFlag) -> str:
    """Why plain decoding failed alone, too; empty where it did not. What was measured by then stays true."""
    while len(own.runs) < repeats and not stop.requested:
        own.once()
    own.close()
    if stop.requested:
        return ""
    try:
        run_alone(plain, repeats)
    except (UserError, MemoryError, RuntimeError) as error:
        return _lack(error)
    return ""


def _no_room(own: Side) -> str:
    """Why a second engine of this size has no place beside it, as far as that is known beforehand, and the
    way out: plain decoding takes no more than drafts do."""
    need, free = own.engine.memory_plan.total, free_memory_bytes(own.engine.device)
    if free is None or need <= free:
        return ""
    return f"a second engine takes up to {human(need)} and {human(free)} are free; {_way_out(own, free)}"


def _way_out(own: Side, free: int) -> str:
    """The smallest pool that changes nothing, where two of them fit."""
    plan, tokens = own.engine.memory_plan, own.tokens
    if tokens is not None and tokens < own.engine.kv_tokens:
        both = 2 * (plan.total - plan.pools + plan.pools * tokens // own.engine.kv_tokens)
        if both <= free + plan.total:
            return f"cache.tokens={tokens} holds all these requests and leaves room for both"
    return WAY_OUT


def _refused(plain: Side) -> str:
    """Prepare it; why that could not be done beside the other engine, empty where it could."""
    try:
        plain.prepare()
        return ""
    except (UserError, MemoryError, RuntimeError) as error:
        reason = _lack(error)
    plain.reset()
    gc.collect()  # what was half built refers to itself
    return reason


def _lack(error: Exception) -> str:
    """What was lacking, and the way out; a bug is raised again."""
    if not isinstance(error, UserError) and not is_out_of_memory(error):
        raise error
    first_line = str(error).partition("\n")[0]
    return f"{first_line or 'memory ran out'}; {WAY_OUT}"
