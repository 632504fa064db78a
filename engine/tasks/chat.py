"""`task=chat`: a conversation in the terminal, or through a pipe. Knows no loop and no template.

Importable without torch.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TextIO

from engine.build import choice
from engine.errors import UserError
from engine.params import SamplingParams
from engine.runs import WORKLOAD, is_unicode, json_line
from engine.tasks.base import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    STDIN_TURNS,
    Outcome,
    Task,
    TaskContext,
    TextEngine,
)
from engine.tasks.conversations import LiveText
from engine.tasks.drive import Answer, Job, Watch, run_jobs
from engine.tasks.generate import record_engine
from engine.tasks.history import History
from engine.tasks.interrupts import StopFlag
from engine.tasks.report import answer_row
from engine.tasks.requests import sampling_params
from engine.workloads.base import WorkItem
from engine.workloads.single import STDIN

HELP = "/reset forgets the conversation, /quit (or end of input) leaves; Ctrl-C stops an answer, or leaves"


class Chat(Task):
    """Each line is a turn, its answer streams. Without room, the oldest turns are dropped with a notice."""

    asks = STDIN_TURNS

    @dataclass(frozen=True)
    class Config(Task.Config):
        """system: text that opens every conversation; null leaves it to the model's template."""

        format: str = choice("text", ("text", "json"))
        system: str | None = None

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        params = sampling_params(context.config)
        if params.n != 1:
            raise UserError(
                f"task=chat gives one answer a turn, so sampling.n={params.n} cannot work; use n=1"
            )
        if context.config.get("prompt") == STDIN:
            raise UserError("task=chat reads its turns from standard input anyway: leave prompt=- out")
        turns = waited_for(context)
        engine = context.make_engine(context.config)
        try:
            if not engine.tokenizer.chat_template:
                raise UserError("this model has no chat template, so it cannot chat; use task=generate")
            record_engine(context, engine)
            return self._talk(context, engine, params, turns)
        finally:
            engine.close()

    def _talk(
        self, context: TaskContext, engine: TextEngine, params: SamplingParams, turns: Iterator[str]
    ) -> Outcome:
        history = History(
            engine.tokenizer.encode_chat, engine.max_context, params.max_tokens, self._config.system
        )
        folder, code = context.folder(), EXIT_OK
        with folder.open_lines() as out, folder.open_lines(WORKLOAD) as asked:
            talk = _Talk(context, engine, params, history, out)
            try:
                for line in turns:
                    asked.write(json_line({"prompt": line}))
                    if talk.command(line) or talk.answer(line):
                        continue
                    break
            except KeyboardInterrupt:
                code = EXIT_INTERRUPTED
        result = {"task": "chat", "turns": talk.turns, "output_tokens": talk.tokens, "seed": engine.seed}
        return Outcome({**result, "interrupted": code == EXIT_INTERRUPTED}, code=code)


@dataclass
class _Talk:
    """The state of one conversation in progress."""

    context: TaskContext
    engine: TextEngine
    params: SamplingParams
    history: History
    out: TextIO
    turns: int = 0
    tokens: int = 0

    def command(self, line: str) -> bool:
        """Whether the line was a command (other than /quit, which ends the reading)."""
        if line == "/reset":
            self.history.reset()
            self.note("the conversation starts anew")
        elif line == "/help":
            self.note(HELP)
        return line in ("/reset", "/help") or not line.strip()

    def answer(self, line: str) -> bool:
        """Ask, stream, remember; False when the reader of stdout went away."""
        if not is_unicode(line):
            self.note("that message is not UTF-8 text: it was left out")
            return True
        ids, dropped = self.history.ask(line)
        if ids is None:
            self.note(
                f"that message does not fit the context of {self.engine.max_context} tokens: shorten it"
            )
            return True
        if dropped:
            self.note(f"the context is full: the oldest {dropped} turn(s) were dropped")
        with StopFlag(self.context.stderr, "answer stopped; a second signal, or SIGTERM, leaves") as stop:
            live = LiveText(self.context.stdout, stop)
            (answer,) = run_jobs(self.engine, [Job(0, tuple(ids), self.params)], stop, Watch(live.show))
        self.history.answered(answer.output.text)
        self._save(line, answer)
        if not live.gone:
            live.end()
        if stop.terminated:  # nobody is there who would ask on
            raise KeyboardInterrupt
        return not live.gone

    def _save(self, line: str, answer: Answer) -> None:
        row = answer_row(answer, WorkItem(prompt=line), 0, self.turns)
        self.out.write(json_line(row))
        self.turns += 1
        self.tokens += answer.tokens

    def note(self, text: str) -> None:
        """A word to the person, on stderr."""
        print(f"[{text}]", file=self.context.stderr, flush=True)


def waited_for(context: TaskContext) -> Iterator[str]:
    """The turns. Through a pipe the first is read here, so that no model is loaded for an empty one."""
    turns = read_turns(context)
    return turns if _at_terminal(context) else chain(list(islice(turns, 1)), turns)


def _at_terminal(context: TaskContext) -> bool:
    return context.stdin is sys.stdin and sys.stdin.isatty()


def read_turns(context: TaskContext) -> Iterator[str]:
    """User lines: `prompt=` first if given, then standard input until /quit or its end. UserError for a pipe
    that holds nothing at all."""
    first = context.config.get("prompt")
    if first is not None:
        yield str(first)
    terminal, asked = _at_terminal(context), first is not None
    if terminal:
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # line editing and history for input()
        print(f"[{HELP}]", file=context.stderr, flush=True)
    while True:
        line = _terminal_line() if terminal else _piped_line(context.stdin)
        if line is None and not (terminal or asked):
            raise UserError(
                "task=chat reads its turns from standard input, and that is empty or closed: type at a "
                "terminal, pipe lines in, give prompt=TEXT, or use task=generate"
            )
        asked = True
        if line is None or line.strip() in ("/quit", "/exit"):
            return
        yield line


def _terminal_line() -> str | None:
    try:
        return input("> ")
    except EOFError:
        print()
        return None


def _piped_line(stdin: TextIO) -> str | None:
    line = stdin.readline()
    return line.rstrip("\r\n") if line else None
