"""Runs every combination of drafting, loop, graphs, prefill graphs and two batches, and says which are equal.

    python -m benchmarks.combinations --attention triton device=cuda model.dtype=fp32
    python -m benchmarks.combinations --attention torch --dummy-draft model=tiny model.dtype=fp32

A combination is refused by a rule, with its reason, or its greedy answers are compared token by token with
the reference's: plain decoding in torch, one request at a time. Options come from conf/: a new one joins by
itself. Engines are small unless the overrides say otherwise; one that finds no room is shown as not run.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.combination_cells import Cell, cells, covering
from benchmarks.tables import Section, heading, parser, preferring, publish, say
from engine import LLM, SamplingParams
from engine.compose import compose
from engine.errors import UserError
from engine.rules import violations
from engine.tasks.compare import Comparison, Run, Verdict, compare, overall
from engine.tasks.drive import Job
from engine.tasks.probe import TOLERANCES
from engine.tasks.reference import REFERENCE, Judge

RUNNING = 3  # requests at a time, of five prompts: batches are odd, and some wait
TEXTS = (
    "Write a haiku about the sea.",
    "Count from one to twenty in words, then count back down again.",
    "Yes?",
    "A farmer has 12 sheep, buys 7 more and sells 5. How many sheep are left? Explain each step. " * 2,
    "Repeat after me: the cat sat on the mat, the cat sat on the mat, the cat sat on the mat.",
)


@dataclass(frozen=True)
class Outcome:
    """refused: the rules' reasons. found: comparisons of the answers. counts: what the run did. failure: what
    went wrong. missing: why it could not be run here, which says nothing of the combination."""

    cell: Cell
    refused: tuple[str, ...] = ()
    found: tuple[Comparison, ...] = ()
    counts: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    seconds: float = 0.0
    missing: str = ""

    @property
    def ran(self) -> bool:
        return not (self.refused or self.missing)

    @property
    def good(self) -> bool:
        """Nothing is wrong with it as far as it was run."""
        return not self.failure and overall(self.found) is not Verdict.DIFFERENT

    @property
    def verdict(self) -> str:
        if self.failure:
            return f"FAILED: {self.failure}"
        if self.refused:
            return "refused: " + "; ".join(self.refused)
        if self.missing:
            return f"not run: {self.missing}"
        tally = Counter(comparison.verdict for comparison in self.found)
        if set(tally) == {Verdict.PASS}:
            return "identical"
        return ", ".join(f"{count} {verdict.value}" for verdict, count in tally.items())


def refused(cell: Cell, common: Sequence[str]) -> tuple[str, ...]:
    """The rules' reasons, none where it is accepted."""
    return tuple(violations(compose(cell.overrides(common))))


class Reference:
    """What plain decoding answers, and how close its choices were. The weights are read once, for all."""

    def __init__(self, common: Sequence[str], tokens: int, longest: int) -> None:
        """longest: tokens that a prompt is cut to."""
        self._common = tuple(common)
        self.llm = LLM(*common, *REFERENCE)
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        encoded = [self.llm.tokenizer.encode_prompt(text)[:longest] for text in TEXTS]
        self.jobs = [Job(i, tuple(ids), params) for i, ids in enumerate(encoded)]
        self.answers = self._run(self.llm)
        self._judge = Judge(self.llm, self.jobs, TOLERANCES[self.llm.dtype])

    def outcome(self, cell: Cell) -> Outcome:
        """Refused, or run and compared."""
        start = time.perf_counter()
        reasons = refused(cell, self._common)
        if reasons:
            return Outcome(cell, reasons, seconds=time.perf_counter() - start)
        try:
            found, counts = self._compared(cell)
        except (UserError, torch.OutOfMemoryError) as error:  # of this card, as it is now
            return Outcome(cell, missing=_line(error), seconds=time.perf_counter() - start)
        except Exception as error:  # the table goes on, and shows it
            failure = f"{type(error).__name__}: {_line(error)}"
            return Outcome(cell, failure=failure, seconds=time.perf_counter() - start)
        finally:
            release()
        return Outcome(cell, (), tuple(found), counts, seconds=time.perf_counter() - start)

    def _compared(self, cell: Cell) -> tuple[list[Comparison], dict[str, float]]:
        container = self.llm._container
        container.model().collect(())  # a drafter of another combination may have asked for states
        config = compose(cell.overrides(self._common)).cfg
        with LLM.from_config(config, parts={"loaded": container.loaded()}) as llm:
            answers = self._run(llm)
            llm.check()
            counts = llm.metrics.snapshot()
        pairs = zip(self.jobs, self.answers, answers, strict=True)
        return [compare(job.key, 0, mine, theirs, self._judge) for job, mine, theirs in pairs], counts

    def _run(self, llm: LLM) -> list[Run]:
        outputs = llm.generate([list(job.ids) for job in self.jobs], self.jobs[0].params)
        samples = [output.completions[0] for output in outputs]
        return [Run(sample.token_ids, sample.finish_reason) for sample in samples]


def release() -> None:
    """Give back what a closed engine leaves behind: garbage in cycles, cached blocks, and the workspaces that
    cuBLAS keeps for each stream. Only while no other engine has graphs, which may hold such a workspace."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        getattr(torch._C, "_cuda_clearCublasWorkspaces", bool)()
        torch.cuda.empty_cache()


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def usual(tokens: int, longest: int) -> tuple[str, ...]:
    """Sizes that suffice for these texts and leave a shared card its memory."""
    context = longest + tokens + 1
    return (
        f"scheduler.max_running={RUNNING}",
        "scheduler.chunk_tokens=64",
        f"cache.max_context={context}",
        f"sampling.max_tokens={tokens}",
        f"cache.tokens={2 * RUNNING * (context + 64)}",
    )


def row(outcome: Outcome) -> dict[str, Any]:
    """One line of the table; what proves that a mode did its work stands beside the verdict."""
    counts = outcome.counts
    shown = {"graph_prefills": "prefills from graphs", "split_passes": "split passes"}
    proof = {title: int(counts[name]) if counts else None for name, title in shown.items()}
    eager = int(counts["eager_decode_steps"]) if counts else None
    waits = int(counts["host_waits"]) if counts else None
    return {
        **outcome.cell.names,
        "verdict": outcome.verdict,
        **proof,
        "eager steps": eager,
        "host waits": waits,
        "seconds": round(outcome.seconds, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every combination is equal or refused; 1: one is wrong; 2: none is, but some could not be run."""
    made = parser(__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--attention", nargs="+", default=["triton"], help="backends, one table each")
    made.add_argument("--tokens", type=int, default=32, help="of every answer")
    made.add_argument("--longest", type=int, default=200, help="tokens that a prompt is cut to")
    made.add_argument("--pairs", action="store_true", help="only as many as cover every pair of choices")
    made.add_argument("--dummy-draft", action="store_true", help="random weights for spec=eagle3")
    chosen = made.parse_args(arguments)
    overrides = preferring(chosen.overrides, *usual(chosen.tokens, chosen.longest))
    reference = Reference(overrides, chosen.tokens, chosen.longest)
    sections, outcomes = [], []
    for attention in chosen.attention:
        every = cells(attention, dummy_draft=chosen.dummy_draft)
        own = []
        for cell in covering(every) if chosen.pairs else every:
            own.append(reference.outcome(cell))
            say(f"{' '.join(cell.names.values())}: {own[-1].verdict}")
        sections.append(Section(f"attention={attention}", [row(outcome) for outcome in own], _sums(own)))
        outcomes += own
    publish(heading(reference.llm.device), sections, chosen.json)
    if not all(outcome.good for outcome in outcomes):
        return 1
    return 2 if any(outcome.missing for outcome in outcomes) else 0


def _sums(outcomes: Sequence[Outcome]) -> str:
    ran = [outcome for outcome in outcomes if outcome.ran]
    bad = sum(not outcome.good for outcome in ran)
    refused = sum(bool(outcome.refused) for outcome in outcomes)
    missing = sum(bool(outcome.missing) for outcome in outcomes)
    text = f"{len(ran)} ran, {bad} of them wrong; {refused} refused by a rule"
    return f"{text}; {missing} could not be run here." if missing else f"{text}."


if __name__ == "__main__":
    sys.exit(main())
