"""Rules about the kernels that compute products of few tokens."""

from __future__ import annotations

from engine.facts import Facts
from engine.kernel_choices.source import AUTO, LIBRARY, TUNE
from engine.rules.base import Answer, Rule, table_file


def kernel_choices(facts: Facts) -> Answer:
    """A table of kernel choices is there before a weight is read."""
    origin = f"a table that `{TUNE} --out FILE` wrote"
    return table_file(facts, "kernels", (AUTO, LIBRARY), origin, "kernel choices")


KERNEL_RULES = (Rule("kernel choices", "a table of kernel choices can be found", kernel_choices),)
