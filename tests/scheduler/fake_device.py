"""A device in plain Python for scheduler tests: rows, page table, KV slots, drafts, the hash model.

It checks what no real device can: that a step touches only pages its request owns, and that the KV it reads
is that of its own prefix.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hash_model import digest, digests, next_token

from engine.batch import Finish, Mode, NewRow, ScheduledStep, StepResult, TokenLogprob
from engine.sampling.asked import SamplingRow

GARBAGE = -1  # KV of a rejected draft
Accepts = Callable[[random.Random, int], int]
DRAFTERS: dict[str, Accepts] = {
    "right": lambda rng, drafts: drafts,
    "wrong": lambda rng, drafts: 0,
    "random": lambda rng, drafts: rng.randint(0, drafts),
}


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
