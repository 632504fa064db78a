"""What a search for kernels found, as rows of tables. Knows entries and uses of a step; runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks import tables
from engine.kernel_choices.plans import BUCKETS, SIZES, Place, Plan
from engine.kernel_choices.table import Entry


def row(place: Place, entry: Entry) -> tables.Row:
    size = place.n * place.k * SIZES[place.dtype]
    return {
        "stage": place.stage,
        "N x K": f"{place.n} x {place.k}",
        "tokens": place.tokens,
        "torch, us": 1e6 * entry.library,
        "chosen, us": 1e6 * entry.seconds,
        "ratio": entry.library / entry.seconds,
        "torch, TB/s": size / entry.library / 1e12,
        "chosen, TB/s": size / entry.seconds / 1e12,
        "plan": "torch" if entry.plan is None else text_of(entry.plan),
    }


def text_of(plan: Plan) -> str:
    """A plan on one line of a table."""
    words = [f"{plan.kernel} {plan.block_n}x{plan.block_k}", f"{plan.warps} warps", f"{plan.stages} stages"]
    words += [
        f"{name} {value}" for name, value in (("split", plan.split), ("turns", plan.turns)) if value > 1
    ]
    return ", ".join([*words, *(name for name in ("swap", "norm", "gate") if getattr(plan, name))])


def totals(found: Mapping[Place, Entry], uses: Mapping[Place, float]) -> list[tables.Row]:
    """All products of a decode step, by number of tokens, where every one of them was measured."""
    rows: list[tables.Row] = []
    for tokens in BUCKETS:
        each = {place: found.get(replace(place, tokens=tokens)) for place, count in uses.items() if count}
        entries = [(uses[place], place, entry) for place, entry in each.items() if entry is not None]
        if not entries or len(entries) < len(each):
            continue
        moved = sum(count * place.n * place.k * SIZES[place.dtype] for count, place, _ in entries)
        before, after = (
            sum(count * getattr(entry, name) for count, _, entry in entries)
            for name in ("library", "seconds")
        )
        rows.append(
            {
                "tokens": tokens,
                "torch, ms": 1e3 * before,
                "chosen, ms": 1e3 * after,
                "ratio": before / after,
                "torch, TB/s": moved / before / 1e12,
                "chosen, TB/s": moved / after / 1e12,
            }
        )
    return rows
