"""What a task is, what it is given, and how its outcome reaches the terminal and the run folder.

Importable without torch. Knows no concrete task and not how configs are composed.
"""

from __future__ import annotations

import io
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TextIO

if TYPE_CHECKING:
    from engine.answers import Delta, RequestOutput
    from engine.memory import MemoryPlan
    from engine.metrics import EngineMetrics
    from engine.models.shape import ModelShape
    from engine.params import SamplingParams
    from engine.pool_size import Owned
    from engine.runs import RunFolder
    from engine.text.base import Tokenizer
    from speculative.base import SpecPlan
    from speculative.width import StepCosts

EXIT_OK = 0
EXIT_REFUSED = 1  # explain: the engine would not start
EXIT_DIFFERENT = 1  # verify and replay: the outputs are not the same
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it; SIGTERM is the same wish

STDIN_TURNS = "standard input"  # Task.asks of a task that talks with whoever types

Prompt = str | Sequence[int]


class TextEngine(Protocol):
    """The part of `engine.LLM` that tasks use; tests pass a fake."""

    tokenizer: Tokenizer
    shape: ModelShape
    device: str
    dtype: str
    seed: int
    max_context: int  # tokens that a prompt and its answer may have together
    kv_tokens: int  # that the KV pool holds
    owned: Owned  # how many of them a request takes
    model_files: Mapping[str, str]
    metrics: EngineMetrics
    memory_plan: MemoryPlan
    spec: SpecPlan  # of its draft algorithm
    step_costs: StepCosts | None  # that its widths were chosen by; None: nobody asked for them

    def add(self, prompt: Prompt, params: SamplingParams | None = None, *, listener: bool = False) -> str:
        """Queue a request; its id. listener: news at every step, not only at the end. UserError for a prompt
        that cannot fit."""

    def step(self) -> list[Delta]:
        """One turn of the loop: what became known by it, for every queued request."""

    def cancel(self, request_id: str) -> bool:
        """End a request; a last Delta with finish_reason "cancelled" follows. False: it is not running."""

    def output(self, request_id: str) -> RequestOutput | None:
        """The output of a request whose samples have all ended, else None; it is forgotten then."""

    def next_token_logits(self, token_ids: Sequence[int]) -> Any:
        """fp32 tensor [V]: logits of the token that follows `token_ids`, by one full prefill."""

    def forget_prefixes(self) -> int:
        """Empty the prefix cache; pages freed."""

    def close(self) -> None:
        """Free the device."""


MakeEngine = Callable[[Mapping[str, Any]], TextEngine]
Compose = Callable[[Sequence[str]], Mapping[str, Any]]


def default_engine(config: Mapping[str, Any]) -> TextEngine:
    """Build the real engine from a plain resolved config; loading shows its progress on stderr."""
    from engine.llm import LLM

    engine: TextEngine = LLM.from_config(dict(config), progress=say)
    return engine


def say(line: str) -> None:
    """One line of progress on stderr."""
    print(line, file=sys.stderr, flush=True)


def composed(overrides: Sequence[str]) -> Mapping[str, Any]:
    """The plain resolved config of a command line."""
    from engine.rules import compose_checked

    return compose_checked(overrides).cfg


@dataclass(frozen=True)
class TaskContext:
    """Everything a task may touch. Logs, progress and warnings go to `stderr`, results to `stdout`.

    config: the composed root, plain and resolved. overrides: the command line that made it. compose: turns
    overrides into a plain resolved root config, checked like a command line. run: the run folder; None for a
    task that leaves none.
    """

    config: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    run: RunFolder | None = None
    make_engine: MakeEngine = default_engine
    compose: Compose = composed
    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)

    def folder(self) -> RunFolder:
        """The run folder of a task that leaves one."""
        assert self.run is not None, "this task leaves no run folder"
        return self.run


@dataclass(frozen=True)
class Outcome:
    """How a task ended. result: what result.json holds. text: what a person reads on stdout (may be empty:
    the task has printed already)."""

    result: Mapping[str, Any]
    text: str = ""
    code: int = EXIT_OK


class Task(ABC):
    """One verb of the command line. Its yaml names the class; `Config` holds the yaml's numbers."""

    leaves_run: ClassVar[bool] = True  # whether it gets a run folder
    judges_outputs: ClassVar[bool] = False  # whether it judges outputs, which forced ones would spoil
    compares_outputs: ClassVar[bool] = False  # whether it judges them token by token, too
    asks: ClassVar[str] = "workload"  # what says what it asks the model; a config group where there is one
    shows_violations: ClassVar[bool] = False  # whether it runs although rules object, and reports them
    main_figure: ClassVar[str | None] = (
        None  # dotted name in its result that runs are compared by: more is better
    )

    @dataclass(frozen=True)
    class Config:
        """Options of every task; subclasses replace it and keep `format` ("text" or "json")."""

        format: str = "text"

    @abstractmethod
    def __init__(self, config: Any) -> None:
        """config: an instance of the class's own Config."""

    @abstractmethod
    def run(self, context: TaskContext) -> Outcome:
        """Do the work. KeyboardInterrupt is the task's own to turn into a partial Outcome."""


def run_task(task: Task, context: TaskContext, output_format: str) -> int:
    """Run `task`, save result.json, print what the format asks for; returns the exit code.

    text: the task's text, then the run folder's path as the last line. json: one object and nothing else.
    """
    quiet = output_format == "json"
    inner = context if not quiet else _without_stdout(context)
    try:
        outcome = task.run(inner)
    except KeyboardInterrupt:
        print("interrupted", file=context.stderr, flush=True)
        outcome = Outcome({"interrupted": True}, code=EXIT_INTERRUPTED)
    if context.run is not None:
        context.run.write_result(outcome.result)
    print_outcome(outcome, context, quiet)
    return outcome.code


def print_outcome(outcome: Outcome, context: TaskContext, as_json: bool) -> None:
    """The stdout contract of every task."""
    path = str(context.run.path) if context.run is not None else None
    if as_json:
        document = dict(outcome.result) if path is None else {**outcome.result, "run": path}
        print(json.dumps(document, allow_nan=False), file=context.stdout)
    else:
        for line in (outcome.text, path):
            if line:
                print(line, file=context.stdout)
    context.stdout.flush()


def _without_stdout(context: TaskContext) -> TaskContext:
    """The same context whose stdout goes nowhere: in JSON mode only the final object may appear there."""
    return replace(context, stdout=io.StringIO())
