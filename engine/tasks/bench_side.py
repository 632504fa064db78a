"""One engine of a benchmark: built when it is first needed, warmed up, and run over the same requests again
and again. Importable without torch. Knows no figure, and not who else is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.metrics import difference
from engine.params import SamplingParams
from engine.runs import WORKLOAD
from engine.tasks.base import TaskContext, TextEngine
from engine.tasks.bench_report import Measured
from engine.tasks.dialogues import Dialogues
from engine.tasks.drive import Job, Watch, run_jobs
from engine.tasks.generate import record_engine
from engine.tasks.interrupts import StopFlag
from engine.tasks.progress import RequestProgress
from engine.tasks.requests import make_jobs
from engine.workloads.base import WorkItem, Workload

if TYPE_CHECKING:
    from engine.tasks.bench import Bench


class Side:
    """runs: what was measured, warm-ups left out; a run that was stopped does not count."""

    def __init__(
        self,
        context: TaskContext,
        config: Mapping[str, Any],
        workload: Workload,
        params: SamplingParams,
        options: Bench.Config,
        stop: StopFlag,
        *,
        record: bool,
    ) -> None:
        """record: this is the engine that the run folder is about."""
        self._context, self._config, self._workload = context, config, workload
        self._params, self._options, self._stop = params, options, stop
        self._record, self._name = record, "bench" if record else "plain decoding"
        self._engine: TextEngine | None = None
        self._jobs: Sequence[Job] = ()
        self.items: Sequence[WorkItem] = ()
        self.runs: list[Measured] = []

    @property
    def engine(self) -> TextEngine:
        """The engine; its counters outlive it."""
        assert self._engine is not None, "a side is asked for its engine before it was prepared"
        return self._engine

    @property
    def tokens(self) -> int | None:
        """KV slots that all requests together come to own; None where an end is not known: a conversation,
        or no limit."""
        if any(item.turns for item in self.items) or any(job.params.max_tokens is None for job in self._jobs):
            return None
        each = ((job.params.n, len(job.ids) + (job.params.max_tokens or 0)) for job in self._jobs)
        return sum(samples * self.engine.owned.slots(length) for samples, length in each)

    def prepare(self) -> None:
        """Build the engine and warm it up; once."""
        if self._engine is None:
            self._engine = self._context.make_engine(self._config)
            self._ask(self._engine)
            for _ in range(self._options.warmup):
                self._run(self._engine)

    def once(self) -> None:
        """One run that counts, unless a stop was asked for."""
        self.prepare()
        run = self._run(self.engine)
        if run is not None:
            self.runs.append(run)

    def close(self) -> None:
        """Free the device; nothing where nothing was built."""
        if self._engine is not None:
            self._engine.close()

    def reset(self) -> None:
        """As before it was prepared: what was half built is freed."""
        self.close()
        self._engine = None
        self.runs.clear()

    def _ask(self, engine: TextEngine) -> None:
        self.items = self._workload.items(engine.shape.vocab_size)
        if self._record:
            record_engine(self._context, engine)
            self._context.folder().write_lines(WORKLOAD, (item.as_row() for item in self.items))
        engine.metrics.stages.on = True
        self._jobs = make_jobs(engine, self.items, self._params, self._options.raw)

    def _run(self, engine: TextEngine) -> Measured | None:
        """All jobs once; None where that was stopped. Counters are differences: what ran before never leaks
        in."""
        if self._stop.requested:
            return None
        if not self._options.keep_cache:
            engine.forget_prefixes()
        talk = Dialogues(engine, self.items, self._context.stderr)
        before, drafts, start = engine.metrics.snapshot(), engine.metrics.spec_counts(), time.perf_counter()
        with RequestProgress(self._context.stderr, talk.total(self._jobs), self._name) as progress:
            watch = Watch(on_answer=progress.finished, follow=talk.follow)
            answers = run_jobs(engine, self._jobs, self._stop, watch, concurrency=self._options.concurrency)
        seconds = time.perf_counter() - start
        if self._stop.requested:
            return None
        counts = difference(before, engine.metrics.snapshot())
        return Measured(answers, seconds, counts, engine.metrics.spec_counts().since(drafts))
