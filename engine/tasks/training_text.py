"""Text to train a draft on, said by the engine itself: user turns that the model makes up, and its answers.

Importable without torch. Knows requests and the chat template; not what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.errors import UserError
from engine.params import SamplingParams
from engine.tasks.base import TaskContext, TextEngine
from engine.tasks.drive import Answer, Job
from engine.tasks.interrupts import StopFlag
from engine.tasks.progress import RequestProgress
from engine.tasks.requests import encode_item
from engine.tasks.training_time import ANSWERS, DOCUMENTS, TURNS, WritingTime
from engine.tasks.waves import run_in_waves
from engine.workloads.base import WorkItem

MARK = "\ufdd1"  # a noncharacter: no template and no text has a use for it
EMPTY_EVERY = 3  # every third made-up turn begins with nothing at all


@dataclass(frozen=True)
class Limits:
    """Tokens of a made-up user turn, of a made-up document and of an answer; temperature of the first two."""

    turn: int
    document: int
    answer: int
    temperature: float


class Writer:
    """Lets one engine write. seed: of everything that is drawn. until: when each stage is cut short. say:
    gets a line about what was."""

    def __init__(
        self,
        engine: TextEngine,
        context: TaskContext,
        stop: StopFlag,
        limits: Limits,
        seed: int,
        until: WritingTime,
        say: Callable[[str], None],
    ) -> None:
        self._engine, self._context, self._stop = engine, context, stop
        self._limits, self._seed, self._until, self._say = limits, seed, until, say
        self._drawn = 0

    def turns(self, openings: Sequence[str], count: int, what: str, stage: str = TURNS) -> list[str]:
        """User turns that the model makes up, begun by one of `openings` each: `count`, less repetitions and
        those that did not end by themselves."""
        begun = [self._opening(openings, i) for i in range(count)]
        heads = {text: self._head(text) for text in set(begun)}
        jobs = [Job(i, heads[text], self._sampled(self._limits.turn)) for i, text in enumerate(begun)]
        answers = self._run(jobs, what, stage)
        ended = [(a, s) for a in answers for s in a.samples if s.finish_reason == "stop"]
        texts = [begun[answer.job.key] + sample.text for answer, sample in ended]
        said = [text for text in texts if text.strip()]
        kept = list(dict.fromkeys(said))
        long = sum(s.finish_reason == "length" for a in answers for s in a.samples)
        reasons = {
            f"did not end within {self._limits.turn} tokens (task.prompt_tokens)": long,
            "said nothing": len(texts) - len(said),
            "repeated another": len(said) - len(kept),
            "had no room (cache.max_context)": sum(not self.fits(job.ids) for job in jobs),
        }
        self._say_dropped(count, what, reasons)
        return kept

    def documents(self, requests: Sequence[str]) -> list[str]:
        """What the model writes when it is asked to, drawn at the same temperature; ended or not."""
        jobs = [
            Job(i, tuple(self._encode(text)), self._sampled(self._limits.document))
            for i, text in enumerate(requests)
        ]
        texts = [s.text.strip() for a in self._run(jobs, "documents", DOCUMENTS) for s in a.samples]
        reasons = {
            "said nothing": texts.count(""),
            "had no room (cache.max_context)": sum(not self.fits(job.ids) for job in jobs),
        }
        self._say_dropped(len(requests), "documents", reasons)
        return [text for text in texts if text]

    def about(self, documents: Sequence[str], forms: Sequence[str], questions: int) -> list[str]:
        """`questions` user turns about each document, with none, one or two of the next put behind it; a text
        that leaves no room for an answer is cut at its end."""
        room = max(1, self._engine.max_context - self._limits.answer - 64)
        turns = []
        for number in range(len(documents) * questions):
            i, kind = number // questions, number % questions
            text = "\n\n".join(documents[i : i + 1 + (i + kind) % 3])
            ids = self._engine.tokenizer.encode(text)[:room]
            turns.append(forms[number % len(forms)].replace("{text}", self._engine.tokenizer.decode(ids)))
        return turns

    def items(self, items: Sequence[WorkItem]) -> list[list[int]]:
        """Prompts of a file through the chat template, where the model has one."""
        return [encode_item(item, self._engine.tokenizer, raw=False) for item in items]

    def texts(self, turns: Sequence[str]) -> list[list[int]]:
        """The same of user turns."""
        return [self._encode(text) for text in turns]

    def answers(self, prompts: Sequence[Sequence[int]], what: str, tokens: int | None = None) -> list[Answer]:
        """Greedy answers, in the order of the prompts; a prompt that leaves no room for two tokens is left
        out. tokens: at most so many, without a limit of time."""
        params = SamplingParams(temperature=0.0, max_tokens=tokens or self._limits.answer)
        jobs = [Job(i, tuple(ids), params) for i, ids in enumerate(prompts)]
        return self._run(jobs, what, ANSWERS if tokens is None else None)

    def _encode(self, text: str) -> list[int]:
        return encode_item(WorkItem(prompt=text), self._engine.tokenizer, raw=False)

    def fits(self, ids: Sequence[int]) -> bool:
        """Whether two tokens can follow the prompt."""
        return 0 < len(ids) <= self._engine.max_context - 2

    def _opening(self, openings: Sequence[str], index: int) -> str:
        if "" in openings and index % EMPTY_EVERY == 0:
            return ""
        return openings[index % len(openings)]

    def _head(self, opening: str) -> tuple[int, ...]:
        """A conversation up to the point where the user has said `opening`."""
        tokenizer = self._engine.tokenizer
        if not tokenizer.chat_template:
            start = [tokenizer.bos_id] if tokenizer.bos_id is not None else list(tokenizer.eos_ids[:1])
            return (*start, *tokenizer.encode(opening))
        before, mark, _ = tokenizer.render_chat([{"role": "user", "content": MARK}], False).partition(MARK)
        if not mark:
            raise UserError(
                "this model's chat template does not show what the user says, so it cannot make up user "
                "turns; set task.self_prompts=0 task.documents=0 and give task.prompts=[FILE]"
            )
        return (*tokenizer.encode(before, special=True), *tokenizer.encode(opening))

    def _sampled(self, tokens: int) -> SamplingParams:
        self._drawn += 1
        return SamplingParams(
            temperature=self._limits.temperature, max_tokens=tokens, seed=self._seed + self._drawn
        )

    def _say_dropped(self, count: int, what: str, reasons: Mapping[str, int]) -> None:
        """Why fewer than `count` are kept, besides the time."""
        words = [f"{dropped} {reason}" for reason, dropped in reasons.items() if dropped]
        if words:
            self._say(f"text: of {count} {what}, {sum(reasons.values())} are not used: {', '.join(words)}")

    def _run(self, jobs: Sequence[Job], what: str, stage: str | None) -> list[Answer]:
        """The jobs that fit, until the stage is over. What was cut short then is kept; after Ctrl-C the
        caller stops anyway."""
        jobs = [job for job in jobs if self.fits(job.ids)]
        late: list[bool] = []

        def over() -> bool:
            if stage is not None and not late and self._until.over(stage):
                late.append(True)
            return bool(late) or self._stop.requested

        rows = int(self._context.config["scheduler"]["max_running"])
        with RequestProgress(self._context.stderr, len(jobs), what) as progress:
            answers = run_in_waves(self._engine, jobs, rows, over, progress.finished)
        whole = sum(not answer.cut for answer in answers)
        if late and whole < len(jobs):
            self._say(
                f"text: the time for {what} is over: {whole} of {len(jobs)} ended, "
                f"{len(answers) - whole} were cut short, {len(jobs) - len(answers)} not begun"
            )
        return answers


def sequences(answers: Sequence[Answer]) -> list[tuple[tuple[int, ...], int]]:
    """(prompt and answer, prompt length) of each answer; the end-of-sequence token is part of it."""
    return [
        ((*answer.job.ids, *sample.token_ids), len(answer.job.ids))
        for answer in answers
        for sample in answer.samples
    ]
