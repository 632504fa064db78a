"""What a user of a device misses by the default options, said once a process. Changes nothing.

Free of torch. Knows which overrides were given, and asks the rules which others would be accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from engine.compose import Resolved, compose_draft
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.facts import gather
from engine.overrides import parse_all
from engine.rules import violations

logger = logging.getLogger("syncless")
ONE_LAUNCH = (  # overrides, and what they make one launch: the best first
    (("graph=step",), "a step"),
    (("attention=triton", "graph=step"), "a step"),
    (("graph=forward",), "the model's pass in it"),
)


def hint_of_launches(resolved: Resolved) -> None:
    """Warn where decode steps go to a GPU kernel by kernel, and nobody has asked for that."""
    advice = _advice(resolved)
    if advice:
        _once(
            f"decode steps are launched kernel by kernel (graph=none, the default): {advice} one launch; "
            "with graph=none on the command line this is not said"
        )


def _advice(resolved: Resolved) -> str:
    """What overrides do that the rules accept beside those given; empty: there is nothing to say."""
    given = given_groups(resolved.overrides)
    if "graph" in given or gather(resolved).device.kind != "cuda":
        return ""
    for more, what in ONE_LAUNCH:
        if not given & given_groups(more) and _accepted((*resolved.overrides, *more)):
            return f"{' '.join(more)} makes {what}"
    return ""


def given_groups(overrides: Sequence[str]) -> set[str]:
    """The groups and root values that these overrides are about."""
    return {override.root for override in parse_all(overrides, conf_tree())}


def _accepted(overrides: Sequence[str]) -> bool:
    try:
        draft = compose_draft(overrides)
    except UserError:
        return False
    return not draft.problems and not violations(draft.resolved)


@cache
def _once(message: str) -> None:
    logger.warning(message)
