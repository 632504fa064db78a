"""The slow path that everything else is judged against: its config, and how close its choices were.

Importable without torch. Names parts by their options only; knows no engine's inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import UserError
from engine.tasks.base import TaskContext, TextEngine
from engine.tasks.compare import Closeness, Comparison, Run, compare
from engine.tasks.drive import Answer, Job
from engine.tasks.probe import Decision, Tolerance, distance, top_two_gap

REFERENCE = (
    "attention=torch",
    "overlap=none",
    "spec=none",
    "graph=none",
    "tbo=none",
    "pcg=none",
    "cache=none",
    "scheduler=fcfs",
    "scheduler.max_running=1",
)
GROUPS = tuple(line.partition("=")[0] for line in REFERENCE if "." not in line.partition("=")[0])


def reference_of(context: TaskContext, batch: int = 1) -> dict[str, Any]:
    """The run's config with every fast path replaced by the slow one; model, sampling and seed stay.

    batch: requests that it runs at a time. Raises UserError when the chosen path is the reference itself:
    there would be nothing to learn.
    """
    plain = context.compose(REFERENCE)
    config = {**context.config, **{group: plain[group] for group in GROUPS if group in plain}}
    config["scheduler"] = {**config["scheduler"], "max_running": batch}
    asked = context.config["cache"].get("max_context")
    config["cache"] = {**config["cache"], "max_context": asked}  # the longest request ends both at one length
    if config == dict(context.config):
        raise UserError(
            "task=verify compares the chosen path with the reference path, and they are the same here: "
            "choose a path to verify, such as overlap=future or attention=triton"
        )
    return config


def same_numbers(config: Mapping[str, Any], seed: int, dtype: str) -> dict[str, Any]:
    """dtype=auto depends on the attention backend, and a fresh seed on the moment: both are pinned."""
    return {**config, "seed": seed, "model": {**config["model"], "dtype": dtype}}


@dataclass(frozen=True)
class Judge:
    """Asks the reference engine how close its choice was: one full prefill of prompt and common prefix."""

    engine: TextEngine
    jobs: Sequence[Job]
    tolerance: Tolerance

    def __call__(self, request: int, sample: int, prefix: tuple[int, ...], other: int) -> Closeness:
        job = self.jobs[request]
        logits = self.engine.next_token_logits([*job.ids, *prefix])
        params = job.params
        short = len(prefix) < params.min_tokens
        eos = () if params.ignore_eos else tuple(self.engine.tokenizer.eos_ids)
        banned = (*params.stop_token_ids, *eos) if short else ()
        decision = Decision(job.ids, prefix, params, sample, params.seed or 0, banned)
        greedy = params.temperature == 0
        return Closeness(
            "gap" if greedy else "coin",
            distance(logits, decision, other, self.tolerance),
            self.tolerance.gap if greedy else self.tolerance.coin,
            top_two_gap(logits, decision),
        )


def compare_all(slow: Sequence[Answer], fast: Sequence[Answer], judge: Judge) -> list[Comparison]:
    """Every sample that both sides finished, in order."""
    theirs = {answer.job.key: answer for answer in fast if not answer.cut}
    found = []
    for answer in slow:
        other = theirs.get(answer.job.key)
        if other is None or answer.cut:
            continue
        for a, b in zip(answer.samples, other.samples, strict=True):
            mine, yours = (Run(s.token_ids, s.finish_reason) for s in (a, b))
            found.append(compare(answer.job.key, a.index, mine, yours, judge))
    return found
