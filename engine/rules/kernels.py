"""Rules about the kernels that compute products of few tokens."""

from __future__ import annotations

from pathlib import Path

from engine.facts import Facts
from engine.kernel_choices.source import AUTO, LIBRARY, TUNE
from engine.rules.base import Answer, Rule, not_applicable, ok, violated


def kernel_choices(facts: Facts) -> Answer:
    """A table of kernel choices is there before a weight is read."""
    setting = str(facts.cfg.get("kernels", AUTO))
    if setting in (AUTO, LIBRARY):
        return not_applicable(f"kernels={setting} names no file")
    if not Path(setting).expanduser().is_file():
        return violated(
            f"kernels={setting} does not exist; give a table that `{TUNE} --out FILE` wrote, or "
            f"kernels={AUTO}"
        )
    return ok("the table of kernel choices is there")


KERNEL_RULES = (Rule("kernel choices", "a table of kernel choices can be found", kernel_choices),)
