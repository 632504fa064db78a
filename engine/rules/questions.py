"""Rules about what the model is asked: a prompt, a workload, the questions of a test, and when they come.

Knows the settings and the command line; not what any task does with the answers.
"""

from __future__ import annotations

from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.facts import Facts
from engine.overrides import parse_all
from engine.rules.base import Answer, not_applicable, ok, violated


def workload(facts: Facts) -> Answer:
    """The prompts can be had, and one source of them was chosen."""
    if facts.flag("task", "asks", "workload") != "workload":
        return _no_workload(facts)
    if "workload" not in facts.parts:
        return not_applicable("no workload")
    if facts.cfg.get("prompt") is not None:
        return _beside_a_prompt(facts)
    return _readable(facts, "workload")


def _readable(facts: Facts, group: str) -> Answer:
    """Reads the files of a group's part: it is built, as the task will."""
    part = facts.parts[group]
    try:
        part.cls(part.config)
    except UserError as error:
        return violated("; ".join(str(error).splitlines()))
    return ok(f"{facts.named(group)} can be read")


def _given(facts: Facts, group: str) -> list[str]:
    """The overrides of a group, as they were typed."""
    return [o.raw for o in parse_all(facts.overrides, conf_tree()) if o.root == group]


def _no_workload(facts: Facts) -> Answer:
    usual = f"workload={conf_tree().defaults.get('workload')}"
    ignored = [line for line in _given(facts, "workload") if line != usual]
    if ignored:
        return violated(
            f"{facts.named('task')} asks no workload, so {' and '.join(ignored)} would change nothing; "
            "leave it out, or use a task that asks one (generate, verify, bench)"
        )
    return not_applicable(f"{facts.named('task')} asks no workload")


def _beside_a_prompt(facts: Facts) -> Answer:
    ignored = _given(facts, "workload")
    if ignored:
        return violated(
            f"a prompt is asked instead of the workload, so {' and '.join(ignored)} would change nothing "
            "beside prompt=; leave one of the two out"
        )
    return not_applicable("a prompt was given")


def evaluation(facts: Facts) -> Answer:
    """The questions, and what their answers are compared with, can be had."""
    part = facts.parts.get("eval")
    asked = facts.flag("task", "asks", "workload") == "eval"
    if part is None or not (asked or getattr(part.cls, "chosen", False)):
        return not_applicable("no test of accuracy was asked for")
    if not asked and not facts.flag("task", "shows_violations", False):
        return violated(
            f"{facts.named('task')} asks no questions of {facts.named('eval')}; use task=eval, or eval=none"
        )
    if asked and facts.cfg.get("prompt") is not None:
        return violated(
            f"{facts.named('task')} asks the questions of {facts.named('eval')}; leave prompt out"
        )
    return _readable(facts, "eval")


def arrivals(facts: Facts) -> Answer:
    """Times of arrival are heard of by who asks a workload."""
    if not facts.flag("arrivals", "timed", False):
        return not_applicable("requests come at once")
    if facts.flag("task", "asks", "workload") != "workload":
        return violated(
            f"{facts.named('task')} hands over all at once, whatever {facts.named('arrivals')} says; "
            "use arrivals=none, or a task that asks a workload"
        )
    if facts.cfg.get("prompt") is not None:
        return violated(
            f"a prompt is asked at once, whatever {facts.named('arrivals')} says; use arrivals=none, or "
            "leave prompt out so that a workload is asked"
        )
    return ok(f"requests come by {facts.named('arrivals')}")
