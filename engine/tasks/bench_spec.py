"""What a benchmark says of drafts: figures, comparison with plain decoding, lines for people, warnings.

Knows counts and results; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from engine.spec_metrics import NOTHING, SpecCounts, spec_figures
from engine.tasks.base import TextEngine
from engine.tasks.report import median

Figures = Mapping[str, Any]


def spec_result(
    engine: TextEngine, counted: Sequence[SpecCounts], counters: Sequence[Mapping[str, float]]
) -> dict[str, Any] | None:
    """Figures of all counted runs together; null for plain decoding."""
    if engine.spec.width == 1:
        return None
    results = int(sum(counts["decode_results"] for counts in counters))
    return {
        **spec_figures(reduce(add, counted, NOTHING), results, engine.spec.longest_run - 1),
        "draft_too_long": sum(counts["draft_too_long"] for counts in counters),
        "simulated_accept_length": engine.spec.simulated,
        "untimed": engine.metrics.stages.hidden or None,
    }


def compared(figures: Figures, plain: Figures | None, alone: str) -> dict[str, Any]:
    """speedup: output tokens a second over plain decoding's. step_cost: a decode step in plain decode steps.
    Each is the median over pairs of runs that took turns; low and high are the ends of those speed-ups. Where
    plain decoding had to come last (alone: why), it is the ratio of the medians, and nothing is paired. Null
    where there is nothing to compare with."""
    if plain is None or not figures["runs"] or not plain["runs"]:
        return dict.fromkeys(("speedup", "step_cost", "speedup_pairs", "in_turns", "plain"))
    kept = ("output_tokens_per_s", "decode_step_ms", "ttft_ms", "itl_ms", "decode_batch")
    both = [(figures, plain)] if alone else list(zip(figures["runs"], plain["runs"], strict=False))
    speedups, costs = (
        [ratio for own, other in both if (ratio := _ratio(own[name], other[name])) is not None]
        for name in ("output_tokens_per_s", "decode_step_ms")
    )
    ends = {"ratios": speedups, "low": min(speedups, default=None), "high": max(speedups, default=None)}
    return {
        "speedup": median(speedups),
        "step_cost": median(costs),
        "speedup_pairs": None if alone else ends,
        "in_turns": not alone,
        "plain": {name: plain[name] for name in kept},
    }


def spec_lines(result: Mapping[str, Any], mark: str) -> list[str]:
    """The lines of the table; none for plain decoding. mark: what stands behind a speed-up."""
    spec = result["spec"]
    if spec is None:
        return []
    lines = [
        f"  drafts             {spec['proposed']} proposed, {spec['accepted']} accepted",
        f"  tokens of a run    {_shares(spec['accept_length_histogram'])}",
        f"  accepted by depth  {' '.join(f'{rate:.2f}' for rate in spec['acceptance_per_position']) or '-'}",
        f"  steps by width     {_shares(spec['widths'])}",
    ]
    if spec["time_shares"] is not None:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in spec["time_shares"].items())
        lines.append(f"  time of a step     {shares}")
    elif spec["untimed"] is not None:
        lines.append(f"  time of a step     {spec['untimed']}")
    if spec["draft_too_long"]:
        lines.append(f"  past the draft's positions {spec['draft_too_long']} requests")
    if result["speedup"] is not None:
        cost = "-" if result["step_cost"] is None else f"{result['step_cost']:.2f}"
        lines.append(f"  cost of a step     {cost} plain decode steps")
        lines.append(
            f"  speed-up           {result['speedup']:.2f}x over plain decoding, {_paired(result)}{mark}"
        )
    return lines


def order_warnings(alone: str, failed: str, runs: int) -> list[str]:
    """What a speed-up is worth whose two sides did not take turns, or why there is none.

    alone: why they did not, and the way out; empty where they did. failed: why plain decoding did not come to
    its end even so, after so many counted runs.
    """
    found = []
    if alone and runs:
        found.append(
            "not in turns: plain decoding ran after all repeats with drafts, so a machine that got slower or "
            f"faster meanwhile distorts the speed-up; {alone}"
        )
    if failed and runs:
        found.append(f"plain decoding failed after {runs} of its runs, which the speed-up is of: {failed}")
    elif failed:
        found.append(
            f"no speed-up: plain decoding had no room beside the drafts ({alone}), nor alone: {failed}"
        )
    return found


def spec_warnings(engine: TextEngine, drafted: float, raw: bool) -> list[str]:
    """What would mislead a reader of acceptance figures."""
    found = []
    if engine.spec.simulated is not None:
        found.append(
            f"simulated: the accept length is forced to {engine.spec.simulated:g}, no draft earned it"
        )
    if drafted and raw and engine.tokenizer.chat_template:
        found.append(
            "raw prompts: this model has a chat template, and acceptance without it is not what its users get"
        )
    return found


def _paired(result: Mapping[str, Any]) -> str:
    """How far the speed-ups of single pairs lie apart."""
    pairs = result["speedup_pairs"]
    if pairs is None:
        return "one after the other"
    count = len(pairs["ratios"])
    if count < 2:
        return "one pair of runs"
    return f"median of {count} pairs of runs in turns, {pairs['low']:.2f}x to {pairs['high']:.2f}x"


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return "  ".join(f"{name}: {count / total:.1%}" for name, count in counts.items()) or "-"


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
