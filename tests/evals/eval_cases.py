"""Shared by the tests of evaluations: question files, engines that answer from a book, runs of the task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.task_fakes import FakeEngine, context_of

from engine.build import make_config, target_class
from engine.compose import compose
from engine.evals.base import Evaluation
from engine.runs import OUTPUTS, RESULT, read_lines
from engine.tasks.base import TaskContext, run_task
from engine.tasks.eval import Eval
from engine.text.bytes_tokenizer import EOS

ROWS = [
    {"question": f"What is {n} plus {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(10)
]


def write(path: Path, rows: Sequence[Mapping[str, Any]] = ROWS) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"eval.path={path}"


def evaluation(*overrides: str) -> Evaluation:
    node = compose(overrides).cfg["eval"]
    cls = target_class(node["_target_"])
    made = cls(make_config(cls, node, "eval"))
    assert isinstance(made, Evaluation)
    return made


def book(answers: Callable[[str], str], after: str) -> Callable[[Sequence[int]], int]:
    """A script that answers with `answers(prompt)` behind the last `after` of the prompt."""

    def script(ids: Sequence[int]) -> int:
        known = bytes(i for i in ids if i < 256)
        start = known.rindex(after.encode()) + len(after.encode())
        answer = answers(known[:start].decode()).encode()
        done = len(known) - start
        return answer[done] if done < len(answer) else EOS

    return script


def solver(wrong: Sequence[int] = (), form: str = "#### {}", after: str = "assistant: ") -> Any:
    """Answers "What is n plus n?", wrongly for some n."""

    def answers(prompt: str) -> str:
        n = int(prompt.rpartition("What is ")[2].split(" ")[0])
        return form.format(2 * n + (n in wrong))

    return book(answers, after)


def engine(script: Any, **options: Any) -> FakeEngine:
    return FakeEngine(script, max_context=4000, **options)


def run(
    folder: Path, engines: Any, *overrides: str, **options: Any
) -> tuple[int, dict[str, Any], list[dict[str, Any]], TaskContext]:
    """Exit code, result.json, rows of outputs.jsonl, the context."""
    context = context_of(folder, engines, "task=eval", *overrides)
    code = run_task(Eval(Eval.Config(**options)), context, options.get("format", "text"))
    path = context.folder().path
    return code, json.loads((path / RESULT).read_text()), read_lines(path / OUTPUTS), context
