"""Whether a configuration can work, before a weight is read: every rule, every violation, at once.

The support matrix is this table: what the rules accept must run. Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.compose import Resolved, compose_draft
from engine.errors import UserError
from engine.facts import Facts, gather
from engine.rules.base import Rule, Verdict
from engine.rules.graphs import GRAPH_RULES
from engine.rules.kernels import KERNEL_RULES
from engine.rules.machine import MACHINE_RULES
from engine.rules.memory import MEMORY_RULES
from engine.rules.modes import MODE_RULES
from engine.rules.parts import PART_RULES
from engine.rules.speculation import SPECULATION_RULES

RULES: tuple[Rule, ...] = (
    *MACHINE_RULES,
    *PART_RULES,
    *SPECULATION_RULES,
    *GRAPH_RULES,
    *MODE_RULES,
    *MEMORY_RULES,
    *KERNEL_RULES,
)


def verdicts(facts: Facts) -> tuple[Verdict, ...]:
    """What every rule says."""
    return tuple(rule.judge(facts) for rule in RULES)


def violations(resolved: Resolved) -> list[str]:
    """One sentence for each violated rule."""
    return [verdict.reason for verdict in verdicts(gather(resolved)) if verdict.violated]


def check(resolved: Resolved) -> None:
    """Raise one UserError that lists every violation."""
    found = violations(resolved)
    if found:
        raise UserError("\n".join(found))


def compose_checked(overrides: Sequence[str] = ()) -> Resolved:
    """Compose and check: names, values and rules together, in one UserError."""
    draft = compose_draft(overrides)
    problems = [*draft.problems, *violations(draft.resolved)]
    if problems:
        raise UserError("\n".join(problems))
    return draft.resolved
