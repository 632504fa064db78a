"""Answers as JSONL rows and as text for people. Knows no engine and writes no file."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.tasks.drive import Answer
from engine.workloads.base import WorkItem

if TYPE_CHECKING:
    from engine.answers import Completion
    from engine.batch import TokenLogprob

TITLE_WIDTH = 76
LOWEST = -1e30  # stands for minus infinity: JSON has none


def answer_row(answer: Answer, item: WorkItem, index: int, turn: int = 0) -> dict[str, Any]:
    """One line of outputs.jsonl. Times are milliseconds since the engine got the request."""
    forced = answer.output.simulated
    return {
        "index": index,
        "turn": turn,
        **({} if forced is None else {"simulated_accept_length": forced}),
        **item.as_row(),
        "prompt_tokens": len(answer.job.ids),
        "cached_tokens": answer.output.cached_tokens,
        "completions": [_completion_row(sample) for sample in answer.samples],
    }


def summary(titles: Sequence[str], texts: Sequence[Sequence[str]], shown: int) -> str:
    """The first `shown` answers under their prompts, and how many more there are."""
    blocks = []
    for title, samples in list(zip(titles, texts, strict=True))[:shown]:
        blocks.append(f"── {one_line(title)}\n" + "\n┄┄\n".join(text.strip("\n") for text in samples) + "\n")
    hidden = len(titles) - shown
    return "\n".join(blocks) + (f"\n… and {hidden} more in outputs.jsonl\n" if hidden > 0 else "")


def simulated_header(forced: float | None) -> str:
    """What stands above text that no model wrote; empty above real text."""
    if forced is None:
        return ""
    return f"SIMULATED: the accept length is forced to {forced:g}; this is not the model's output\n"


def one_line(text: str, width: int = TITLE_WIDTH) -> str:
    """The text on one line, cut with an ellipsis."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def totals(answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """Counts from token ids, never from re-tokenised text."""
    output = sum(answer.tokens for answer in answers)
    prompt = sum(len(answer.job.ids) for answer in answers)
    return {
        "requests": len(answers),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "seconds": seconds,
        "output_tokens_per_s": output / seconds if seconds > 0 else 0.0,
        "finish_reasons": dict(Counter(s.finish_reason for a in answers for s in a.samples)),
    }


def token_gaps(times: Sequence[float]) -> list[float]:
    """Seconds per token after the first: tokens that came in one step share its time equally.

    Taking raw differences instead would give k - 1 zeros for a step of k tokens, and a median of zero.
    """
    steps = [(at, len(list(group))) for at, group in itertools.groupby(times)]
    gaps = [((at - before) / count, count) for (before, _), (at, count) in itertools.pairwise(steps)]
    return [gap for gap, count in gaps for _ in range(count)]


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p90 and p99 by linear interpolation; null without values."""
    return {f"p{q}": percentile(values, q / 100) for q in (50, 90, 99)}


def percentile(values: Sequence[float], quantile: float) -> float | None:
    """The quantile of the values by linear interpolation between the neighbours."""
    if not values:
        return None
    ordered = sorted(values)
    place = quantile * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float | None]) -> float | None:
    """The median of what is known; null when nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _completion_row(sample: Completion) -> dict[str, Any]:
    times = [round(1e3 * at, 3) for at in sample.token_times]
    row: dict[str, Any] = {
        "index": sample.index,
        "text": sample.text,
        "token_ids": list(sample.token_ids),
        "finish_reason": sample.finish_reason,
        "ttft_ms": times[0] if times else None,
        "latency_ms": times[-1] if times else None,
    }
    if sample.error is not None:
        row["error"] = sample.error
    if sample.logprobs is not None:
        row["logprobs"] = [_logprob_row(entry) for entry in sample.logprobs]
    return row


def _logprob_row(entry: TokenLogprob) -> Mapping[str, Any]:
    top = [{"token": token, "logprob": max(value, LOWEST)} for token, value in entry.top]
    return {"token": entry.token, "logprob": max(entry.logprob, LOWEST), "top": top}
