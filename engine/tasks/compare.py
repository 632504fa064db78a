"""Compares two runs token by token and judges the first divergence of each answer. Knows no engine.

Importable without torch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


class Verdict(enum.Enum):
    """near-tie: the choice was so close that rounding may decide it. DIFFERENT: one of the two is wrong."""

    PASS = "pass"
    NEAR_TIE = "near-tie"
    DIFFERENT = "DIFFERENT"


@dataclass(frozen=True)
class Run:
    """What one side produced for one sample."""

    ids: tuple[int, ...]
    finish_reason: str | None


@dataclass(frozen=True)
class Closeness:
    """How close the reference's choice was at a divergence. distance: of the other token from being chosen;
    limit: what still is a near-tie; top_gap: the reference's top-2 logit gap; kind: "gap" or "coin"."""

    kind: str
    distance: float
    limit: float
    top_gap: float


Judge = Callable[[int, int, tuple[int, ...], int], Closeness]  # (request, sample, common prefix, other token)


@dataclass(frozen=True)
class Comparison:
    """One sample's verdict. position: of the first divergence, if any. compared: tokens until then."""

    request: int
    sample: int
    verdict: Verdict
    compared: int
    position: int | None = None
    reference: int | None = None
    fast: int | None = None
    closeness: Closeness | None = None
    note: str = ""

    def row(self) -> dict[str, Any]:
        """Plain data for result.json; an infinite distance (a token of no weight) becomes null."""
        row = {**asdict(self), "verdict": self.verdict.value}
        if self.closeness is not None and self.closeness.distance == float("inf"):
            row["closeness"]["distance"] = None
        return row


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of leading tokens that are equal."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def compare(request: int, sample: int, reference: Run, fast: Run, judge: Judge) -> Comparison:
    """Judge one sample. After a divergence nothing is compared: the two go on from different texts."""
    at = common_prefix(reference.ids, fast.ids)
    if at == len(reference.ids) == len(fast.ids):
        return _same_ids(request, sample, reference, fast)
    if at in (len(reference.ids), len(fast.ids)):
        note = f"the same tokens, but one ended there ({_ends(reference, fast)})"
        return Comparison(
            request, sample, Verdict.DIFFERENT, at, at, *_tokens(reference, fast, at), note=note
        )
    close = judge(request, sample, reference.ids[:at], fast.ids[at])
    verdict = Verdict.NEAR_TIE if close.distance <= close.limit else Verdict.DIFFERENT
    return Comparison(request, sample, verdict, at, at, *_tokens(reference, fast, at), closeness=close)


def overall(comparisons: Iterable[Comparison]) -> Verdict:
    """The worst of all."""
    found = {comparison.verdict for comparison in comparisons}
    return next((v for v in (Verdict.DIFFERENT, Verdict.NEAR_TIE) if v in found), Verdict.PASS)


def near_ties_per_10000(comparisons: Sequence[Comparison]) -> float:
    """Near-ties in ten thousand compared tokens; 0.0 when nothing was compared."""
    compared = sum(comparison.compared for comparison in comparisons)
    ties = sum(comparison.verdict is Verdict.NEAR_TIE for comparison in comparisons)
    return 1e4 * ties / compared if compared else 0.0


def _same_ids(request: int, sample: int, reference: Run, fast: Run) -> Comparison:
    same = reference.finish_reason == fast.finish_reason
    note = "" if same else f"the same tokens, but another ending ({_ends(reference, fast)})"
    verdict = Verdict.PASS if same else Verdict.DIFFERENT
    return Comparison(request, sample, verdict, len(reference.ids), note=note)


def _ends(reference: Run, fast: Run) -> str:
    return f"reference: {reference.finish_reason}, fast: {fast.finish_reason}"


def _tokens(reference: Run, fast: Run, at: int) -> tuple[int | None, int | None]:
    a, b = (run.ids[at] if at < len(run.ids) else None for run in (reference, fast))
    return a, b
