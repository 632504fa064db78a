"""The figures of an evaluation: accuracy with its interval, the comparison with another, lines for people.

Knows marked rows; asks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from engine.evals.base import Evaluation, Question
from engine.evals.earlier import QUESTION_ID
from engine.evals.stats import mcnemar, wilson
from engine.tasks.examine import Examined
from engine.tasks.opponents import Opponent
from engine.tasks.report import totals

Row = Mapping[str, Any]
SHOWN = 20  # names of questions that a result lists


def eval_result(
    evaluation: Evaluation,
    questions: Sequence[Question],
    own: Examined,
    opponent: Opponent,
    others: Sequence[Row] | None,
    facts: Mapping[str, Any],
    *,
    stopped: bool,
) -> dict[str, Any]:
    """result.json. accuracy: of the headline score, null where nothing was checked."""
    scores = scores_of(own.rows, evaluation.scores, evaluation.config.confidence)
    headline = scores[evaluation.scores[0]]
    cut = sum(row["completions"][0]["finish_reason"] == "length" for row in own.rows)
    failed = sum(row["completions"][0]["finish_reason"] == "error" for row in own.rows)
    return {
        "task": "eval",
        "interrupted": stopped,
        "accuracy": headline["value"],
        "accuracy_low": headline["low"],
        "accuracy_high": headline["high"],
        "score": evaluation.scores[0],
        "confidence": evaluation.config.confidence,
        "questions": len(questions),
        "answered": len(own.rows),
        "taken_over": len(own.rows) - sum(not answer.cut for answer in own.answers),
        "cut_by_length": cut,
        "failed_requests": failed,
        "scores": scores,
        "against": None if others is None else compared(evaluation, own.rows, others, opponent),
        **totals(own.answers, own.seconds),
        **facts,
        "warnings": [*evaluation.warnings(), *_warnings(cut, failed, len(own.rows))],
    }


def scores_of(rows: Sequence[Row], names: Sequence[str], confidence: float) -> dict[str, dict[str, Any]]:
    """Score by score: how many of the checked answers were right, and the interval."""
    found = {}
    for name in names:
        marks = [row["correct"][name] for row in rows if row["correct"].get(name) is not None]
        found[name] = asdict(wilson(sum(marks), len(marks), confidence))
    return found


def compared(
    evaluation: Evaluation, rows: Sequence[Row], others: Sequence[Row], opponent: Opponent
) -> dict[str, Any]:
    """Both on the questions that both have answered. pairs: McNemar's exact test a score."""
    theirs = {row[QUESTION_ID]: row for row in others}
    both = [(row, theirs[row[QUESTION_ID]]) for row in rows if row[QUESTION_ID] in theirs]
    other = [answer for _, answer in both]
    unlike = [a["question"] for a, b in both if _ids(a) != _ids(b)]
    return {
        "name": opponent.name,
        "differs": list(opponent.differs),
        "compared": len(both),
        "identical_answers": len(both) - len(unlike),
        "other_answers": unlike[:SHOWN],
        "scores": scores_of(other, evaluation.scores, evaluation.config.confidence),
        "pairs": {name: _paired(both, name) for name in evaluation.scores},
    }


def _paired(both: Sequence[tuple[Row, Row]], score: str) -> dict[str, Any] | None:
    """The table of a paired comparison; None where a side was not checked."""
    marks = [(a["correct"].get(score), b["correct"].get(score)) for a, b in both]
    known = [pair for pair in marks if None not in pair]
    if not known:
        return None
    only_this, only_other = known.count((True, False)), known.count((False, True))
    return {
        "both": known.count((True, True)),
        "only_this": only_this,
        "only_other": only_other,
        "neither": known.count((False, False)),
        "difference": (only_this - only_other) / len(known),
        "p_value": mcnemar(only_this, only_other),
    }


def _ids(row: Row) -> Sequence[int]:
    found: Sequence[int] = row["completions"][0]["token_ids"]
    return found


def _warnings(cut: int, failed: int, answered: int) -> list[str]:
    found = []
    if cut:
        found.append(
            f"{cut} of {answered} answers were cut at sampling.max_tokens, and mostly count as wrong for it"
        )
    if failed:
        found.append(f"{failed} of {answered} requests failed and count as wrong")
    return found


def eval_text(result: Mapping[str, Any]) -> str:
    """The figures for a person."""
    what = f"{result['model'] or 'a model'} in {result['dtype']} on {result['device']}"
    lines = [f"{what}: {result['answered']} of {result['questions']} questions answered"]
    lines += [
        f"  {name:<10} {_share(share, result['confidence'])}" for name, share in result["scores"].items()
    ]
    speed = f"{result['output_tokens']} tokens, {result['output_tokens_per_s']:.1f} tokens/s"
    lines.append(f"  {result['requests']} asked now, {result['taken_over']} taken over; {speed}")
    lines += _against_lines(result["against"], result["confidence"])
    return "\n".join(lines + [f"  ! {line}" for line in result["warnings"]])


def _against_lines(against: Mapping[str, Any] | None, confidence: float) -> list[str]:
    if against is None:
        return []
    same = f"{against['identical_answers']} of {against['compared']} answers are identical, token for token"
    lines = [f"against {against['name']}: {same}"]
    for name, share in against["scores"].items():
        lines.append(f"  {name:<10} {_share(share, confidence)}")
        lines += _pair_lines(against["pairs"][name], confidence)
    return lines


def _pair_lines(pair: Mapping[str, Any] | None, confidence: float) -> list[str]:
    if pair is None:
        return []
    verdict = "a difference" if pair["p_value"] < 1 - confidence else "no difference shown"
    won = f"right only here {pair['only_this']}, only there {pair['only_other']}"
    return [f"  {'':<10} {won}: {verdict} (McNemar, exact, p = {pair['p_value']:.3g})"]


def _share(share: Mapping[str, Any], confidence: float) -> str:
    if share["value"] is None:
        return "not checked"
    interval = f"{share['low']:.1%} to {share['high']:.1%} at {confidence:.0%}"
    return f"{share['value']:.1%} ({share['correct']} of {share['of']}; {interval})"
