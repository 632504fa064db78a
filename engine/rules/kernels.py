"""Rules about the kernels that compute products of few tokens."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UserError
from engine.facts import Facts
from engine.kernel_choices.source import AUTO, LIBRARY, TUNE, given
from engine.rules.base import OK, Answer, Rule, table_file, violated


def kernel_choices(facts: Facts) -> Answer:
    """A table of kernel choices is there, and none of its plans is impossible, before torch is loaded."""
    origin = f"a table that `{TUNE} --out FILE` wrote"
    found = table_file(facts, "kernels", (AUTO, LIBRARY), origin, "kernel choices")
    try:
        if found[0] == OK:
            given(Path(str(facts.cfg["kernels"])).expanduser())
    except UserError as error:
        return violated(str(error))
    return found


KERNEL_RULES = (Rule("kernel choices", "a table of kernel choices can be found and read", kernel_choices),)
