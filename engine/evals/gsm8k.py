"""GSM8K as a test of accuracy: asked in a chat or as a text to continue, marked by the final number.

Importable without torch. Source: Cobbe et al. 2021 (arXiv 2110.14168); worked examples in front of the
question as in Wei et al. 2022 (arXiv 2201.11903), but in our own words: figures with examples compare with
each other, not with published ones, unless eval.examples names theirs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.build import number
from engine.errors import UserError
from engine.evals.base import Evaluation, Mark, Question
from engine.evals.numbers import MARKER, flexible_number, strict_number
from engine.workloads.base import WorkItem
from engine.workloads.data import Source, picked
from engine.workloads.files import parsed
from engine.workloads.gsm8k import GSM8K, Problem, parse_problem

EXAMPLES = Path(__file__).with_name("gsm8k_examples.jsonl")
TASK = f"Work it out step by step. Write the final number alone on the last line, behind {MARKER}"
_CALCULATOR = re.compile(r"<<[^>]*>>")  # the file's annotations for a calculator, which nobody should imitate


def parse_solved(row: Any, where: str) -> Problem:
    """A question with its answer."""
    problem = parse_problem(row, where)
    if problem.answer is None or strict_number(problem.answer) is None:
        raise UserError(f"{where}: answer has to be text that ends in '{MARKER} NUMBER'")
    return problem


SOLVED = replace(GSM8K, parse=parse_solved)


class Gsm8kEval(Evaluation):
    """Two scores. flexible: the number behind ####, or else the last number of the answer. strict: the first
    of these alone. The difference is how often a model knew the answer and not the form."""

    scores = ("flexible", "strict")

    @dataclass(frozen=True)
    class Config(Evaluation.Config):
        """shots: worked examples in front of each question. examples: a file of them, in the data's form;
        null: six of our own."""

        shots: int = number(0, ge=0)
        examples: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._shots = config.shots
        self._source: Source[Problem] = Source(SOLVED, config.path, "eval")
        self._examples = _examples(config)

    def fetch(self) -> None:
        self._source.fetch()

    def questions(self) -> Sequence[Question]:
        chosen = picked(self._source.rows, self.config.limit, self.config.seed)
        return [self._question(problem, place) for place, problem in enumerate(chosen)]

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.config.chat else ("\nQuestion:",)

    def mark(self, question: Question, text: str) -> Mark:
        found = {"flexible": flexible_number(text), "strict": strict_number(text)}
        correct = {score: answer == question.expected for score, answer in found.items()}
        return Mark(correct, {"extracted": found})

    def _question(self, problem: Problem, place: int) -> Question:
        solved = problem.answer or ""
        others = [e for e in self._examples if e.question != problem.question][: self._shots]
        ask = _conversation if self.config.chat else _text
        row = {"question": problem.question, "answer": solved}
        return Question(f"gsm8k/{place}", ask(problem, others), strict_number(solved) or "", row)


def _examples(config: Gsm8kEval.Config) -> list[Problem]:
    """The worked examples, one more than asked for if there is one: none may be the question itself."""
    if not config.shots:
        return []
    file = Path(config.examples).expanduser() if config.examples else EXAMPLES
    found = parsed(file, parse_solved, "eval.examples", "worked examples")
    if len(found) < config.shots:
        raise UserError(
            f"eval.shots={config.shots} asks for more worked examples than {file.name} holds: use "
            f"eval.shots={len(found)}, or name a longer file by eval.examples=FILE"
        )
    return found[: config.shots + 1]


def _conversation(problem: Problem, examples: Sequence[Problem]) -> WorkItem:
    """The examples as turns that went before."""
    messages = []
    for example in examples:
        messages.append({"role": "user", "content": f"{example.question}\n\n{TASK}"})
        messages.append({"role": "assistant", "content": _solution(example)})
    messages.append({"role": "user", "content": f"{problem.question}\n\n{TASK}"})
    return WorkItem(messages=tuple(messages))


def _text(problem: Problem, examples: Sequence[Problem]) -> WorkItem:
    """One text that breaks off where the answer begins."""
    shown = [f"Question: {e.question}\nAnswer: {_solution(e)}\n\n" for e in examples]
    return WorkItem(prompt=f"{''.join(shown)}Question: {problem.question}\nAnswer:")


def _solution(example: Problem) -> str:
    return _CALCULATOR.sub("", example.answer or "")
