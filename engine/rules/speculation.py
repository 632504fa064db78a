"""Rules about drafts and what is done with their output."""

from __future__ import annotations

from engine.facts import Facts
from engine.rules.base import Answer, Rule, not_applicable, ok, table_file, violated
from engine.step_costs import CACHED, MEASURE


def simulated(facts: Facts) -> Answer:
    """Forced acceptance makes output that nothing may be judged by."""
    forced = facts.spec.simulated
    if forced is None:
        return not_applicable("acceptance is real")
    if facts.flag("task", "judges_outputs", False):
        return violated(
            f"{facts.named('task')} judges outputs, and spec.simulate_accept_length={forced:g} makes them "
            "up; leave it out, or use task=bench"
        )
    return ok("nothing judges the output")


def same_samples(facts: Facts) -> Answer:
    """The ratio test draws from the target's distribution, but not the tokens that plain decoding draws."""
    if facts.spec.seeded:
        return not_applicable(f"sampled output with {facts.named('spec')} is that of plain decoding")
    temperature = facts.option("sampling", "temperature")
    if facts.flag("task", "compares_outputs", False) and temperature:
        return violated(
            f"{facts.named('task')} compares answers token by token, and at sampling.temperature="
            f"{temperature:g} spec.acceptance=ratio samples other tokens than plain decoding (from the same "
            "distribution); use spec.acceptance=match, or sampling.temperature=0"
        )
    return ok("nothing compares its samples with those of plain decoding")


def step_costs(facts: Facts) -> Answer:
    """A table of step costs is there before a weight is read."""
    origin = "a step_costs.json of a run with the same spec"
    return table_file(facts, "step_costs", (CACHED, MEASURE), origin, "step costs")


SPECULATION_RULES = (
    Rule("simulated acceptance", "made-up output is not judged", simulated),
    Rule("same samples", "samples of the ratio test are not compared with others", same_samples),
    Rule("step costs", "a table of step costs can be found", step_costs),
)
