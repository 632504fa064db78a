"""What two runs answered, answer by answer: where the token ids first differ. Knows outputs.jsonl alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.runs import OUTPUTS, read_lines

Key = tuple[str, int, int, int]  # path of a comparison (verify), request, turn, sample
Samples = Mapping[Key, Mapping[str, Any]]
CANCELLED = "cancelled"


@dataclass(frozen=True)
class Compared:
    """answers: of the first run, as far as they could be compared. tokens: of these, until they differ.
    differences: where. left_out: answers that the replay of a stopped run did not reach."""

    answers: int
    tokens: int
    differences: tuple[Mapping[str, Any], ...]
    left_out: int = 0


def read_outputs(path: Path) -> dict[Key, Mapping[str, Any]]:
    """The completions of a run by their place; empty where it left none. UserError for a file that holds
    something else."""
    file = path / OUTPUTS
    try:
        rows = read_lines(file) if file.is_file() else []
        return {
            (
                str(row.get("path", "")),
                int(row["index"]),
                int(row.get("turn", 0)),
                int(sample["index"]),
            ): sample
            for row in rows
            for sample in row["completions"]
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{file} does not hold a run's outputs") from error


def compare_outputs(old: Samples, new: Samples, *, stopped: bool = False) -> Compared:
    """An answer that was cancelled is compared as far as it went. stopped: the first run did not reach its
    end, so what it has no answer to is no difference, and what its replay cancelled says nothing."""
    differences, answers, tokens = [], 0, 0
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        if stopped and (a is None or (b is not None and _unreached(a, b))):
            continue
        answers += a is not None
        found = _difference(a, b)
        tokens += found["position"] if found else min(len(_ids(a)), len(_ids(b)))
        if found is not None:
            path, request, turn, sample = key
            where = {"request": request, "turn": turn, "sample": sample}
            differences.append({**({"path": path} if path else {}), **where, **found})
    return Compared(answers, tokens, tuple(differences), len(old) - answers)


def _unreached(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return bool(new["finish_reason"] == CANCELLED != old["finish_reason"])


def place_of(difference: Mapping[str, Any]) -> str:
    """Which answer, for a person; counted from 1."""
    turn = f", turn {difference['turn'] + 1}" if difference["turn"] else ""
    sample = f", sample {difference['sample'] + 1}" if difference["sample"] else ""
    path = f" ({difference['path']} path)" if "path" in difference else ""
    return f"answer {difference['request'] + 1}{turn}{sample}{path}"


def _ids(sample: Mapping[str, Any] | None) -> list[int]:
    return [] if sample is None else sample["token_ids"]


def _difference(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if old is None or new is None:
        return {"position": 0, "reason": "the answer is missing " + ("then" if old is None else "now")}
    a, b = _ids(old), _ids(new)
    cut = CANCELLED in (old["finish_reason"], new["finish_reason"])
    shorter = min(len(a), len(b))
    position = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    if position < shorter or (not cut and len(a) != len(b)):
        tokens = [ids[position] if position < len(ids) else None for ids in (a, b)]
        return {"position": position, "reason": "other tokens", "tokens": tokens}
    if not cut and old["finish_reason"] != new["finish_reason"]:
        reason = f"ended by {old['finish_reason']}, now {new['finish_reason']}"
        return {"position": position, "reason": reason}
    return None
