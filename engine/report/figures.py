"""The figures that a report shows: where each lies in result.json, its unit, and which direction is better.

Knows the results of tasks bench, verify, eval and generate; knows no row and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """key: the name in results.csv. path: dotted, in result.json. better: 1 more is, -1 less is, 0 neither.
    main: has a column in the table, the others stand in a row's details. scale: times the stored value.
    ends: paths of its interval's ends, where results hold one. word: it is a text, no number."""

    key: str
    label: str
    unit: str
    path: str
    better: int = 0
    main: bool = False
    scale: float = 1.0
    ends: tuple[str, str] | None = None
    word: bool = False

    def value(self, result: Result) -> Any:
        """The number, a whole one where the result holds such, or the word; None where there is none."""
        found = at(result, self.path)
        if self.word:
            return found if isinstance(found, str) else None
        return (found if self.scale == 1.0 else found * self.scale) if _number(found) else None

    def number(self, result: Result) -> float | None:
        """The value of a figure that is a number."""
        value = self.value(result)
        return None if value is None or self.word else float(value)

    def interval(self, result: Result) -> tuple[float, float] | None:
        """The ends of the interval that the run itself claims."""
        found = [at(result, path) for path in self.ends or ()]
        return (found[0] * self.scale, found[1] * self.scale) if found and all(map(_number, found)) else None

    def repeats(self, result: Result) -> list[float]:
        """The figure of each repeat; of a task without repeats its one value."""
        values = [number_at(run, self.path) for run in list_at(result, "runs") or [result]]
        return [value * self.scale for value in values if value is not None]

    @property
    def title(self) -> str:
        return f"{self.label} ({self.unit})" if self.unit else self.label


SPEED = Figure("output_tokens_per_s", "output", "tokens/s", "output_tokens_per_s", 1, main=True)
TTFT = Figure("ttft_ms_p50", "first token p50", "ms", "ttft_ms.p50", -1, main=True)
ITL = Figure("itl_ms_p50", "token gap p50", "ms", "itl_ms.p50", -1, main=True)
ACCURACY = Figure(
    "accuracy", "accuracy", "%", "accuracy", 1, main=True, scale=100.0, ends=("accuracy_low", "accuracy_high")
)
VERDICT = Figure("verdict", "verdict", "", "verdict", main=True, word=True)
PERCENTILES = ("p50", "p90", "p99")

FIGURES: tuple[Figure, ...] = (
    SPEED,
    Figure("goodput_per_s", "goodput", "requests/s", "goodput_per_s", 1, main=True),
    Figure("host_waits_per_step", "host waits", "per step", "host_waits_per_step", -1, main=True),
    Figure("forward_occupancy", "device busy", "%", "forward_occupancy", 1, main=True, scale=100.0),
    TTFT,
    Figure("ttft_ms_p99", "first token p99", "ms", "ttft_ms.p99", -1, main=True),
    ITL,
    Figure("itl_ms_p99", "token gap p99", "ms", "itl_ms.p99", -1, main=True),
    Figure("decode_step_ms", "decode step", "ms", "decode_step_ms", -1, main=True),
    Figure("accept_length", "accept length", "tokens", "accept_length", 1, main=True),
    ACCURACY,
    VERDICT,
    Figure("tokens_compared", "tokens compared", "", "tokens_compared", main=True),
    Figure("near_ties_per_10000", "near-ties", "per 10,000 tokens", "near_ties_per_10000", -1, main=True),
    Figure("peak_memory_mib", "peak memory", "MiB", "peak_memory_bytes", -1, main=True, scale=2.0**-20),
    Figure("total_tokens_per_s", "prompt and output", "tokens/s", "total_tokens_per_s", 1),
    Figure("requests_per_s", "finished requests", "per s", "requests_per_s", 1),
    Figure("ttft_ms_p90", "first token p90", "ms", "ttft_ms.p90", -1),
    Figure("itl_ms_p90", "token gap p90", "ms", "itl_ms.p90", -1),
    Figure("tpot_ms_p50", "time per later token p50", "ms", "tpot_ms.p50", -1),
    Figure("tpot_ms_p99", "time per later token p99", "ms", "tpot_ms.p99", -1),
    Figure("e2e_ms_p50", "whole answer p50", "ms", "e2e_ms.p50", -1),
    Figure("e2e_ms_p99", "whole answer p99", "ms", "e2e_ms.p99", -1),
    Figure("late_ms_p99", "waited to be handed over p99", "ms", "late_ms.p99", -1),
    Figure("decode_batch", "requests in a step", "", "decode_batch"),
    Figure("accept_rate", "accepted drafts", "%", "accept_rate", 1, scale=100.0),
    Figure("step_cost", "cost of a step", "plain steps", "step_cost", -1),
    Figure("speedup_in_run", "speed-up over plain decoding in the same run", "x", "speedup", 1),
    Figure("host_ms_per_step", "host work", "ms per step", "host_ms_per_step", -1),
    Figure("eager_decode_percent", "steps outside a graph", "%", "eager_decode_share", -1, scale=100.0),
    Figure("cached_percent", "prompt tokens from cache", "%", "cached_share", 1, scale=100.0),
    Figure("requests", "requests", "", "requests"),
    Figure("prompt_tokens", "prompt tokens", "", "prompt_tokens"),
    Figure("output_tokens", "output tokens", "", "output_tokens"),
    Figure("repeats", "repeats", "", "repeats"),
    Figure("concurrency", "requests in flight", "", "concurrency"),
    Figure("questions", "questions", "", "questions"),
    Figure("cut_by_length", "answers cut by length", "", "cut_by_length", -1),
    Figure("against", "compared with", "", "against.name", word=True),
    Figure("identical_answers", "answers identical to its", "", "against.identical_answers"),
    Figure("dtype", "dtype", "", "dtype", word=True),
    Figure("device", "device", "", "device", word=True),
)


def at(node: Any, path: str) -> Any:
    """The value at a dotted path; None where a step of it is missing."""
    for name in path.split("."):
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def number_at(node: Any, path: str) -> float | None:
    """The finite number at a dotted path; None where there is something else, or nothing."""
    found = at(node, path)
    return float(found) if _number(found) else None


def list_at(node: Any, path: str) -> list[Any]:
    """The list at a dotted path; an empty one where there is something else, or nothing."""
    found = at(node, path)
    return found if isinstance(found, list) else []


def primary(results: Sequence[Result], asked: str | None = None, lower: bool = False) -> Figure:
    """What rows are ranked by: the figure at the path that was asked for, else accuracy where there is one,
    else throughput. lower: of the asked one less is better."""
    if asked:
        known = next((figure for figure in FIGURES if asked in (figure.path, figure.key)), None)
        found = known or Figure(asked, asked, "", asked)
        return replace(found, better=-1 if lower else 1, main=True)
    return ACCURACY if any(ACCURACY.number(result) is not None for result in results) else SPEED


def present(results: Sequence[Result], leading: Figure) -> list[Figure]:
    """The figures that at least one of the results has, the leading one first."""
    every = [leading, *(figure for figure in FIGURES if figure.key != leading.key)]
    return [figure for figure in every if any(figure.value(result) is not None for result in results)]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
