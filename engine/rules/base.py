"""What a rule is: one question over the facts, answered with a verdict and its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.facts import Facts

OK, VIOLATED, UNKNOWN, NOT_APPLICABLE = "ok", "violated", "unknown", "not applicable"


@dataclass(frozen=True)
class Verdict:
    """verdict: ok, violated, unknown (decided when the engine is built) or not applicable. reason: why; of a
    violation a sentence with the settings, their values and the nearest that work."""

    rule: str
    verdict: str
    reason: str

    @property
    def violated(self) -> bool:
        return self.verdict == VIOLATED


Answer = tuple[str, str]


@dataclass(frozen=True)
class Rule:
    """name: as explain shows it. about: what it checks, in a clause. ask: facts -> (verdict, reason)."""

    name: str
    about: str
    ask: Callable[[Facts], Answer]

    def judge(self, facts: Facts) -> Verdict:
        return Verdict(self.name, *self.ask(facts))


def ok(reason: str) -> Answer:
    return OK, reason


def violated(reason: str) -> Answer:
    return VIOLATED, reason


def unknown(reason: str) -> Answer:
    return UNKNOWN, reason


def not_applicable(reason: str) -> Answer:
    return NOT_APPLICABLE, reason


def table_file(facts: Facts, key: str, words: Sequence[str], origin: str, what: str) -> Answer:
    """Whether the root value `key`, unless it is one of `words` (the default first), names a file that is
    there. origin: where such files come from; what: the table in words."""
    value = str(facts.cfg.get(key, words[0]))
    if value in words:
        return not_applicable(f"{key}={value} names no file")
    if not Path(value).expanduser().is_file():
        return violated(f"{key}={value} does not exist; give {origin}, or {key}={words[0]}")
    return ok(f"the table of {what} is there")


def first_problem(problems: list[str], fine: str) -> Answer:
    """Violated with all problems in one sentence, or ok."""
    return violated("; ".join(problems)) if problems else ok(fine)
