"""`task=explain`: the wiring, the flags and who caused them, the memory plan and every rule. Builds nothing.

Importable without torch, and runs without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.build import choice
from engine.tasks.base import EXIT_OK, EXIT_REFUSED, Outcome, Task, TaskContext


class Explain(Task):
    """Answers for any command line that can be read; violated rules are part of the answer, and of the exit
    code."""

    leaves_run = False
    shows_violations = True

    @dataclass(frozen=True)
    class Config(Task.Config):
        """format: tables, or one JSON object."""

        format: str = choice("text", ("text", "json"))

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        from engine.explain import explain_config
        from engine.explain_text import render

        found = explain_config(context.config, context.overrides)
        color = context.stdout.isatty()
        text = "" if self._config.format == "json" else render(found, color=color)
        return Outcome(found.as_dict(), text, EXIT_OK if found.accepted else EXIT_REFUSED)
