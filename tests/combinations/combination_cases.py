"""The small runs of these tests, and a quick way to ask the rules about many combinations."""

from __future__ import annotations

from functools import cache

from benchmarks.combination_cells import Cell, Choice, cells
from engine.compose import Resolved, compose
from engine.rules import violations

TOKENS, LONGEST = 3, 12  # of an answer, of a prompt: Triton's interpreter is slow
COMMON = (
    "model=tiny",
    "model.dtype=float32",
    "model.layers=2",
    "model.vocab=300",
    "cache.max_context=64",
    "sampling.max_tokens=8",
    "scheduler.max_running=3",  # of five prompts: batches are odd, and some wait
)
CPU = (*COMMON, "device=cpu", "threads=1")
TORCH, TRITON = (cells(attention, dummy_draft=True) for attention in ("torch", "triton"))
WAYS_OUT = ("use ", "set ", "choose ", "give ", "pip ", "needs ")


@cache
def _composed(*choices: Choice) -> Resolved:
    return compose([*(c.override for c in choices), *(m for c in choices for m in c.more), *CPU])


def reasons(cell: Cell) -> list[str]:
    """What the rules say of a cell, whose config is put together from nodes that were composed once: Hydra
    takes a hundred times as long as the rules."""
    attention, spec, *rest = cell.choices  # a draft's attention follows the target's
    base = _composed(attention, spec)
    cfg, choices = dict(base.cfg), dict(base.choices)
    for choice in rest:
        group, _, option = choice.override.partition("=")
        cfg[group], choices[group] = _composed(choice).cfg[group], option
    return violations(Resolved(cfg, (), choices))


def assert_helpful(sentences: list[str]) -> None:
    """Each names a setting and a way out."""
    for sentence in sentences:
        assert "=" in sentence, sentence
        assert any(word in sentence for word in WAYS_OUT), sentence


@cache
def accepted_triton() -> tuple[Cell, ...]:
    return tuple(cell for cell in TRITON if not reasons(cell))
