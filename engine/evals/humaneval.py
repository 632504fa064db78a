"""HumanEval as a test of accuracy: a function is completed, and its unit tests decide, if that was asked for.

Checking runs code that a model wrote: off unless eval.run_code=true; without it completions are written out.
Importable without torch. Source: Chen et al. 2021 (arXiv 2107.03374).
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.build import number
from engine.evals.base import Evaluation, Mark, Question
from engine.evals.sandbox import Limits, namespaces, run_program
from engine.workloads.base import WorkItem
from engine.workloads.data import Source, picked
from engine.workloads.humaneval import HUMANEVAL, Function, parse_function
from engine.workloads.rows import text_of

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")  # section 3.2: the function is over
TASK = "Complete this Python function. Answer with the whole function in one code block."
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def parse_tested(row: Any, where: str) -> Function:
    """A function with its name and its test."""
    found = parse_function(row, where)
    for key in ("entry_point", "test"):
        text_of(found.row, key, where)
    return found


TESTED = replace(HUMANEVAL, parse=parse_tested)


class HumanEval(Evaluation):
    """One completion a function: pass@1."""

    scores = ("pass@1",)

    @dataclass(frozen=True)
    class Config(Evaluation.Config):
        """run_code: run the tests, and so code that a model wrote. seconds, megabytes: what a check may take.
        workers: checks at a time; null: one a core, at most 8."""

        chat: bool = False
        run_code: bool = False
        seconds: float = number(10.0, gt=0)
        megabytes: int = number(1024, ge=64)
        workers: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._source: Source[Function] = Source(TESTED, config.path, "eval")
        self._limits = Limits(config.seconds, config.megabytes) if config.run_code else None
        self.workers = config.workers or min(8, os.cpu_count() or 1)

    def fetch(self) -> None:
        self._source.fetch()

    def questions(self) -> Sequence[Question]:
        chosen = picked(self._source.rows, self.config.limit, self.config.seed)
        return [self._question(function, place) for place, function in enumerate(chosen)]

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.config.chat else STOP

    def mark(self, question: Question, text: str) -> Mark:
        row = question.row
        added = completion(text, row["entry_point"]) if self.config.chat else text
        columns = {"task_id": question.name, "completion": added}
        if self._limits is None:
            return Mark({"pass@1": None}, columns)
        program = f"{row['prompt']}{added}\n\n{row['test']}\n\ncheck({row['entry_point']})\n"
        ended = run_program(program, self._limits)
        return Mark({"pass@1": ended.passed}, {**columns, "failure": ended.reason})

    def warnings(self) -> Sequence[str]:
        if self._limits is None:
            return ["nothing was checked: eval.run_code=true runs the functions' tests, in a sandbox"]
        if not namespaces():
            return ["the programs could reach the network: this system does not let unshare cut them off"]
        return []

    def _question(self, function: Function, place: int) -> Question:
        row = function.row
        name = str(row.get("task_id") or f"humaneval/{place}")
        if not self.config.chat:
            return Question(name, WorkItem(prompt=function.prompt), row["entry_point"], row)
        asked = f"{TASK}\n\n```python\n{function.prompt.rstrip()}\n```"
        return Question(
            name, WorkItem(messages=({"role": "user", "content": asked},)), row["entry_point"], row
        )


def completion(answer: str, name: str) -> str:
    """What continues the prompt, out of an answer in a chat: its first code block, or all of it.

    A whole function goes below the prompt, which is one already, and takes its place; a body is indented.
    """
    block = _BLOCK.search(answer)
    code = textwrap.dedent(block.group(1) if block else answer).strip("\n")
    if re.search(rf"^\s*(?:async\s+)?def\s+{re.escape(name)}\b", code, re.MULTILINE):
        return f"\n\n{code}\n"
    return textwrap.indent(code, "    ") + "\n"
