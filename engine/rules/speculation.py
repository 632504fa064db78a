"""Rules about drafts and what is done with their output."""

from __future__ import annotations

from engine.facts import Facts
from engine.rules.base import Answer, Rule, not_applicable, ok, violated


def simulated(facts: Facts) -> Answer:
    """Forced acceptance makes output that nothing may be judged by."""
    forced = facts.spec.simulated
    if forced is None:
        return not_applicable("acceptance is real")
    if facts.flag("task", "compares_outputs", False):
        return violated(
            f"{facts.named('task')} judges outputs, and spec.simulate_accept_length={forced:g} makes them "
            "up; leave it out, or use task=bench"
        )
    return ok("nothing judges the output")


SPECULATION_RULES = (Rule("simulated acceptance", "made-up output is not judged", simulated),)
