"""`python -m benchmarks.tune_kernels OVERRIDES`: which kernels compute products of few tokens fastest, here.

Runs the configuration once to see which products it has, then measures each: torch's product (cuBLAS) with
separate operations around it against our kernels, in turns. What wins goes into the user's cache, where
kernels=auto finds it, or into a file (--out). Nothing is ever tuned while an engine serves.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import tables
from benchmarks.kernel_candidates import Card, worth_measuring
from benchmarks.kernel_search import QUICK, THOROUGH, Effort, Stopwatch, best_entry, winners
from benchmarks.kernel_tables import row, totals
from benchmarks.kernel_timing import StageTimer, compilers, weight_pool
from engine import LLM, SamplingParams
from engine.errors import UserError
from engine.kernel_choices.plans import (
    BUCKETS,
    LINEAR,
    NORM_GATED,
    NORM_LINEAR,
    Choices,
    Place,
    Plan,
)
from engine.kernel_choices.source import AUTO, Found, find, keep, read
from engine.kernel_choices.table import ChoiceTable, Circumstances, Entry, as_document, name_of
from engine.rules import compose_checked
from engine.runs import write_json
from kernels.cuda.available import why_not

SHARED_KIB = {9: 227, 10: 227}  # that a block may have, by compute capability
INSIDE = {LINEAR: NORM_LINEAR, NORM_LINEAR: NORM_GATED}  # stage -> one that asks for it when it has no plan
STEPS = 4  # decode steps in which the products of one are counted
PROMPT = [5, 6, 7, 8] * 40


class Noted(Choices):
    """Plans nothing, and counts what it is asked for: (stage, dtype, N, K)."""

    def __init__(self) -> None:
        super().__init__({})
        self.asked: Counter[tuple[str, str, int, int]] = Counter()

    def plan(self, stage: str, dtype: str, tokens: int, n: int, k: int) -> Plan | None:
        self.asked[stage, dtype, n, k] += 1
        return None


@dataclass(frozen=True)
class NotedTable(ChoiceTable):
    """A table whose choices are those."""

    noted: Noted

    def choices(self) -> Choices:
        return self.noted


def products_of(overrides: Sequence[str]) -> dict[Place, float]:
    """The products of a configuration at one token -> how often a decode step computes each."""
    noted = Noted()
    table = NotedTable(Circumstances.here("any"), {}, noted)
    config = compose_checked([*overrides, "graph=none", "pcg=none", "record=false"]).cfg
    with LLM.from_config(config, parts={"kernels": Found(table, "counting")}) as llm:
        counts = []
        for tokens in (1, 1 + STEPS):
            before, steps = noted.asked.copy(), llm.metrics.decode_steps
            llm.generate([PROMPT], SamplingParams(max_tokens=tokens, ignore_eos=True))
            counts.append((noted.asked - before, llm.metrics.decode_steps - steps))
    (prefill, _), (both, steps) = counts
    both.subtract({key: both[INSIDE[key[0]], *key[1:]] for key in both if key[0] in INSIDE})
    prefill.subtract({key: prefill[INSIDE[key[0]], *key[1:]] for key in prefill if key[0] in INSIDE})
    return {
        Place(stage, dtype, 1, n, k): (calls - prefill[stage, dtype, n, k]) / max(steps, 1)
        for (stage, dtype, n, k), calls in both.items()
        if calls
    }


def order(uses: Mapping[Place, float], buckets: Sequence[int]) -> list[Place]:
    """Every product at every bucket; what a step spends most on first, few tokens first."""
    weight = {place: count * place.n * place.k for place, count in uses.items()}
    ranked = sorted(uses, key=lambda place: -weight[place])
    return [replace(place, tokens=tokens) for tokens in buckets for place in ranked]


@dataclass(frozen=True)
class Search:
    """early: dependent launch, as the engine would; seconds: after which no place is begun; before: what
    earlier searches found; kept: where entries go."""

    card: Card
    early: bool
    effort: Effort
    seconds: float
    before: Mapping[Place, Entry]
    kept: Kept


def tune(places: Sequence[Place], search: Search, pool: ProcessPoolExecutor) -> dict[Place, Entry]:
    """An entry for each place, as far as the time reaches; each is kept as soon as it is there."""
    device = torch.device("cuda")
    pools = {dtype: weight_pool(places, dtype, device) for dtype in {place.dtype for place in places}}
    found: dict[Place, Entry] = {}
    start = time.perf_counter()
    with torch.inference_mode():
        for number, place in enumerate(places):
            if time.perf_counter() - start > search.seconds:
                tables.say(f"the time is over: {len(places) - number} places are left")
                break
            timer = StageTimer(place, pools[place.dtype], search.early, pool)
            watch, known = Stopwatch(timer.quick, timer.fair), winners({**search.before, **found}, place)
            entry = found[place] = best_entry(place, search.card, watch, known, search.effort)
            search.kept.add(place, entry)
            tables.say(f"{number + 1}/{len(places)} {name_of(place)}: {entry.library / entry.seconds:.3f} x")
    return found


class Kept:
    """Where entries go: a file, or the user's cache."""

    def __init__(self, here: Circumstances, out: Path | None) -> None:
        self._here, self._out = here, out

    def before(self) -> Mapping[Place, Entry]:
        """What earlier searches found: in the file, in the cache, or as it ships."""
        found = find(AUTO, self._here).table.entries
        known = read(self._out).entries if self._out is not None and self._out.is_file() else {}
        return {**found, **known}

    def add(self, place: Place, entry: Entry) -> None:
        table = ChoiceTable(self._here, {place: entry})
        if self._out is None:
            keep(table)
            return
        before = read(self._out) if self._out.is_file() else ChoiceTable(self._here, {})
        if before.measured_on != self._here:
            raise UserError(f"--out {self._out} holds a table of {before.measured_on}: give another file")
        write_json(self._out, as_document(table.over(before)))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    made = tables.parser(__doc__)
    made.add_argument(
        "--tokens", type=tables.numbers, default=list(BUCKETS),
        help="buckets to be measured; above 64 where a kernel takes so many",
    )  # fmt: skip
    made.add_argument("--stages", nargs="+", default=[], help="stages to be measured; all of them by default")
    made.add_argument("--out", type=Path, help="add to this file instead of the cache")
    made.add_argument(
        "--quick", action="store_true",
        help="only around what won before for the same product or one like it, in the cache or as shipped",
    )  # fmt: skip
    made.add_argument("--limit", type=float, default=3600, help="seconds for the measurement")
    return made.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout; the table where it was asked for."""
    given = parse(arguments)
    unknown = sorted(set(given.tokens) - set(BUCKETS))
    if unknown or not torch.cuda.is_available():
        needs = (
            f"--tokens {unknown[0]} is none of {', '.join(map(str, BUCKETS))}"
            if unknown
            else "no CUDA device"
        )
        print(f"nothing can be measured: {needs}", file=sys.stderr)
        return 1
    with compilers(min(16, len(os.sched_getaffinity(0)))) as pool:
        sections = _measured(given, pool)
    tables.publish(tables.heading("cuda"), sections, given.json)
    return 0


def _measured(given: argparse.Namespace, pool: ProcessPoolExecutor) -> list[tables.Section]:
    properties = torch.cuda.get_device_properties(0)
    shared = SHARED_KIB.get(properties.major, 99) << 10
    early = properties.major >= 9
    card = Card(properties.multi_processor_count, shared, lean=early, cuda=_can_use_cuda())
    uses = products_of(tables.preferring(given.overrides, "device=cuda", "attention=triton"))
    uses = {place: count for place, count in uses.items() if not given.stages or place.stage in given.stages}
    here = Circumstances.here(torch.cuda.get_device_name(0))
    kept, effort = Kept(here, given.out), QUICK if given.quick else THOROUGH
    search = Search(card, early, effort, given.limit, kept.before(), kept)
    places = [place for place in order(uses, given.tokens) if worth_measuring(place, card)]
    if not places:
        tables.say("none of these products has kernels of ours at these numbers of tokens")
    found = tune(places, search, pool)
    return [
        tables.Section("All products of a decode step", totals(found, uses)),
        tables.Section("Products", [row(place, entry) for place, entry in found.items()]),
    ]


def _can_use_cuda() -> bool:
    reason = why_not()
    if reason:
        tables.say(f"kernels in CUDA C++ are not tried: {reason}")
    return not reason


if __name__ == "__main__":
    sys.exit(main())
