"""A device in plain Python for scheduler tests: rows, page table, KV slots, drafts, a hash for a model.

It checks what no real device can: that a step touches only pages its request owns, and that the KV it reads
is that of its own prefix. The next token depends on the whole prefix: outputs must not depend on scheduling.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.batch import Finish, Mode, NewRow, SamplingRow, ScheduledStep, StepResult, TokenLogprob
from engine.cache.base import PrefixCache
from engine.cache.none import NoPrefixCache
from engine.cache.radix import RadixCache
from engine.loop import Loop, OverlapLoop, SerialLoop
from engine.metrics import EngineMetrics
from engine.params import SamplingParams
from engine.policy import FirstComeFirstServed, LongestPrefixFirst, SchedulerConfig
from engine.request import Delta, Request
from engine.scheduler import Scheduler
from engine.text.bytes_tokenizer import ByteTokenizer
from engine.text.stream import TextStream
from speculative.width import FixedWidth

LETTERS = range(97, 105)  # the model's vocabulary: the bytes a..h
GARBAGE = -1  # KV of a rejected draft

Accepts = Callable[[random.Random, int], int]
DRAFTERS: dict[str, Accepts] = {
    "right": lambda rng, drafts: drafts,
    "wrong": lambda rng, drafts: 0,
    "random": lambda rng, drafts: rng.randint(0, drafts),
}


def digest(state: int, token: int) -> int:
    """Digest of a prefix, from that of the prefix without its last token."""
    return (state * 1103515245 + token + 12345) % 2147483647


def digests(tokens: Sequence[int]) -> list[int]:
    out, state = [], 1
    for token in tokens:
        state = digest(state, token)
        out.append(state)
    return out


def next_token(state: int) -> int:
    """What the model says after a prefix."""
    return LETTERS[(state >> 7) % len(LETTERS)]


def expected(prompt: Sequence[int], params: SamplingParams, max_context: int) -> tuple[list[int], str]:
    """(token ids, finish reason) of a request that runs alone."""
    limit = min(max_context, len(prompt) + (params.max_tokens or max_context))
    state, out = digests(prompt)[-1], []
    while True:
        token = next_token(state)
        out.append(token)
        state = digest(state, token)
        text = bytes(out).decode()
        if token in params.stop_token_ids or any(s in text for s in params.stop):
            return out, "stop"
        if len(prompt) + len(out) == limit:
            return out, "length"


def expected_text(ids: Sequence[int], params: SamplingParams) -> str:
    """The text of those ids: without the stop id, else cut before the stop string that completes first."""
    text = bytes(ids).decode()
    if ids and ids[-1] in params.stop_token_ids:
        return text[:-1]
    ends = [(text.find(s) + len(s), -len(s)) for s in params.stop if s in text]
    if ends:
        end, minus = min(ends)
        return text[: end + minus]
    return text


@dataclass
class Row:
    """A device row."""

    tokens: list[int]
    seq_len: int
    sampling: SamplingRow
    pages: dict[int, int] = field(default_factory=dict)


class FakeDevice:
    """launch and resolve as the loops call them. Steps run in launch order; results wait to be resolved."""

    def __init__(self, page_size: int, width: int, need: int, drafter: str, seed: int = 0) -> None:
        self.page_size = page_size
        self.width = width
        self.need = need
        self.rows: dict[int, Row] = {}
        self.kv: dict[int, int] = {}
        self.touched: deque[set[int]] = deque()  # pages of each launched step that is not applied
        self.steps: list[ScheduledStep] = []
        self.max_entry = 0
        self._accepts = DRAFTERS[drafter]
        self._rng = random.Random(seed)
        self._results: deque[StepResult] = deque()

    def launch(self, step: ScheduledStep) -> FakeHandle:
        self._pages: set[int] = set()
        for new in step.new_rows:
            self._enter(new)
        for row, index, page in step.new_pages:
            assert page != 0, "page 0 is padding"
            self.rows[row].pages[index] = page
            self.max_entry = max(self.max_entry, index)
        assert len(set(step.rows)) == len(step.rows)
        assert 0 not in step.rows
        runs = [self._run(step, i) for i in range(len(step.rows))]
        self.touched.append(self._pages)
        self.steps.append(step)
        tokens, finish, accepted = (list(column) for column in zip(*runs, strict=True))
        drafted, signal = [max(0, step.width - 1)] * len(runs), [0] * len(runs)
        logprobs = [[TokenLogprob(t, -0.5, ((t, -0.5), (0, -1.0))) for t in run] for run in tokens]
        self._results.append(StepResult(step.step_id, tokens, finish, accepted, drafted, signal, logprobs))
        return FakeHandle(step)

    def resolve(self, handle: FakeHandle) -> StepResult:
        result = self._results.popleft()
        assert result.step_id == handle.step.step_id, "results out of order"
        self.touched.popleft()
        return result

    def _enter(self, new: NewRow) -> None:
        tokens = [int(t) for t in new.tokens]
        assert 0 <= new.seq_len < len(tokens), "a prefill without a token to compute"
        self.rows[new.row] = Row(tokens, new.seq_len, new.sampling)

    def _run(self, step: ScheduledStep, index: int) -> tuple[list[int], int, int]:
        row = self.rows[step.rows[index]]
        assert row.seq_len <= step.bounds[index], "the bound is no bound"
        self._read_prefix(row)
        if step.mode is Mode.VERIFY:
            return self._verify(row)
        assert row.seq_len == step.bounds[index], "a prefill's bound is exact"
        return self._extend(row, step.query_lens[index], step.emits[index])

    def _extend(self, row: Row, count: int, emits: bool) -> tuple[list[int], int, int]:
        assert count > 0
        values = digests(row.tokens[: row.seq_len + count])
        for position in range(row.seq_len, row.seq_len + count):
            self._write(row, position, values[position])
        row.seq_len += count
        assert emits == (row.seq_len == len(row.tokens)), "only a prompt's last chunk draws a token"
        if not emits:
            return [], 0, 0
        run, finish = self._trim(row, [next_token(values[-1])])
        row.tokens += run
        return run, finish, 0

    def _verify(self, row: Row) -> tuple[list[int], int, int]:
        assert len(row.tokens) == row.seq_len + 1
        drafts = self._accepts(self._rng, self.width - 1)
        state = digests(row.tokens)[-1]
        run = []
        for offset in range(self.need):
            good = offset <= drafts and offset < self.width
            self._write(row, row.seq_len + offset, state if good else GARBAGE)
            if good:
                run.append(next_token(state))
                state = digest(state, run[-1])
        kept, finish = self._trim(row, run)
        row.tokens += kept
        row.seq_len += len(kept)
        return kept, finish, drafts

    def _trim(self, row: Row, run: list[int]) -> tuple[list[int], int]:
        for i, token in enumerate(run):
            if token in row.sampling.stop_ids:
                return run[: i + 1], int(Finish.STOP)
            if len(row.tokens) + i + 1 == row.sampling.max_len:
                return run[: i + 1], int(Finish.LENGTH)
        return run, int(Finish.NONE)

    def _slot(self, row: Row, position: int) -> int:
        page = row.pages.get(position // self.page_size)
        assert page is not None, f"position {position} has no page"
        self._pages.add(page)
        return page * self.page_size + position % self.page_size

    def _write(self, row: Row, position: int, value: int) -> None:
        self.kv[self._slot(row, position)] = value

    def _read_prefix(self, row: Row) -> None:
        for position, value in enumerate(digests(row.tokens[: row.seq_len])):
            assert self.kv.get(self._slot(row, position)) == value, f"foreign KV at position {position}"


@dataclass
class FakeHandle:
    step: ScheduledStep


class Rig:
    """A scheduler, a fake device and one of the real loops; checks every promise after every turn."""

    def __init__(
        self,
        *,
        page_size: int = 4,
        pages: int = 64,
        max_context: int = 128,
        width: int = 1,
        draft_slots: int = 0,
        lag: int = 1,
        cache: str = "radix",
        policy: str = "fcfs",
        drafter: str = "random",
        successor_keys: bool = False,
        seed: int = 0,
        eos_ids: tuple[int, ...] = (),
        text_stream_factory: Callable[[Request], object] | None = None,
        **limits: int,
    ) -> None:
        need = max(width, draft_slots)
        self.max_context = max_context
        self.device = FakeDevice(page_size, width, need, drafter, seed)
        self.metrics = EngineMetrics()
        kind = RadixCache if cache == "radix" else NoPrefixCache
        store: PrefixCache = kind(PrefixCache.Config(page_size=page_size), successor_keys=successor_keys)
        chosen = (
            FirstComeFirstServed(SchedulerConfig(**limits))
            if policy == "fcfs"
            else LongestPrefixFirst(LongestPrefixFirst.Config(**limits))
        )
        tokenizer = ByteTokenizer()
        self.scheduler = Scheduler(
            chosen,
            store,
            pages=pages,
            max_context=max_context,
            widths=FixedWidth(width),
            draft_slots=draft_slots,
            eos_ids=eos_ids,
            text_stream_factory=text_stream_factory  # type: ignore[arg-type]
            or (lambda r: TextStream(tokenizer, r.prompt_ids.tolist(), r.params.stop, r.params.include_stop)),
            metrics=self.metrics,
        )
        kind_of_loop: type[Loop] = OverlapLoop if lag else SerialLoop
        self.loop = kind_of_loop(Loop.Config(), self.scheduler, self.device)  # type: ignore[arg-type]
        self.requests: list[Request] = []
        self.events: list[Delta] = []
        self.turns = 0

    def add(self, request: Request) -> Request:
        self.scheduler.add(request)
        self.requests.append(request)
        return request

    def submit(self, prompt: Sequence[int], listener: bool = False, **params: object) -> Request:
        """Add a request with a fresh id."""
        name = f"r{len(self.requests)}"
        return self.add(Request(name, prompt, SamplingParams(**params), listener=listener))  # type: ignore[arg-type]

    def turn(self) -> None:
        self.turns += 1
        self.events += self.loop.turn()
        self.scheduler.check()
        holders = self.scheduler._roster.admitted + self.scheduler._roster.leaving
        owned = {page for request in holders for page in request.pages}
        for touched in self.device.touched:
            assert touched <= owned, "a step in flight touches a page that was given back"
        for request in holders:
            assert request.last_step == 0 or request.kv_committed <= request.bound <= request.worst + 1

    def drain(self, limit: int = 20000) -> None:
        while self.loop.has_work():
            self.turn()
            assert self.turns < limit, "no progress"
        self.events += self.scheduler.take_events()

    def verify(self) -> None:
        """Every request that was not cancelled has exactly the ids, text and reason it would have alone."""
        assert not self.scheduler.has_work()
        for request in self.requests:
            ids, reason = expected(request.prompt_ids.tolist(), request.params, self.max_context)
            if request.finish_reason == "cancelled":
                assert request.output_ids == ids[: len(request.output_ids)]
                continue
            assert (request.output_ids, request.finish_reason) == (ids, reason), request
            assert request.text == expected_text(ids, request.params)
            assert len(request.token_times) == len(ids)

    def assert_idle(self) -> None:
        """Nothing is held any more: every page is free or cached and unlocked."""
        ledger = self.scheduler.ledger
        assert ledger.free + ledger.cache.cached == ledger.total
        assert ledger.cache.evictable == ledger.cache.cached
        assert self.scheduler._roster.free_rows == self.scheduler.config.max_running


def letters(rng: random.Random, count: int) -> list[int]:
    return [rng.choice(LETTERS) for _ in range(count)]
