"""Counters of one engine since it was built. Plain numbers that only grow; rates are for whoever reads them.

Importable without torch. Knows no part of the engine; the loop, the scheduler and the future map fill it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from engine.batch import Mode
from engine.compiled import COMPILED
from engine.graphs.cost import CaptureCost
from engine.occupancy import Occupancy
from engine.spec_metrics import Run, SpecCounts
from engine.stage_times import StageTimes

Number = int | float


@dataclass(slots=True)
class EngineMetrics:
    """decode means VERIFY steps of any width. A host wait is a wait while no later step is queued; waiting
    with one queued is back-pressure. Tokens are counted as users get them (after trimming), never per draft.
    runs: results of decode steps with drafts. widths: decode steps by their width. stages: off unless asked.
    captures: what graphs cost, by phase. occupancy: of the latest steps.
    """

    extend_steps: int = 0
    decode_steps: int = 0
    eager_decode_steps: int = 0  # decode steps that ran outside a graph although graphs are on
    capture_pauses: int = 0  # graphs that were captured while requests waited
    capture_pause_seconds: float = 0.0  # what that took
    graph_prefills: int = 0  # prefill passes (two a step with two batches) that graphs ran
    eager_prefills: int = 0  # those that ran eagerly although prefill graphs are on
    prefill_padding: int = 0  # tokens that prefill passes were padded with
    split_passes: int = 0  # passes that ran as two interleaved halves; a graph counts once, when captured
    unsplit_passes: int = 0  # passes that ran as one batch although two are wanted
    decode_rows: int = 0  # requests summed over decode steps
    host_waits: int = 0
    back_pressure_waits: int = 0
    host_wait_seconds: float = 0.0
    back_pressure_seconds: float = 0.0
    device_seconds: float = 0.0  # the device was executing steps, as far as known without waiting for it
    serving_seconds: float = 0.0  # wall time in which some request was unfinished
    host_seconds: float = 0.0  # the launch thread's own work: schedule, pack, launch, apply
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that the prefix cache held
    emitted_tokens: int = 0
    decode_tokens: int = 0  # those of them that decode steps emitted (the others come from prefill)
    decode_results: int = 0  # requests summed over applied decode steps; rows of ended requests left out
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    draft_too_long: int = 0  # requests that went past the positions of the draft model
    finished_requests: int = 0
    retractions: int = 0
    overshoot_tokens: int = 0  # emitted for requests that had ended a step before: dropped
    evicted_pages: int = 0  # taken from the prefix cache
    peak_running: int = 0
    runs: Counter[Run] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    stages: StageTimes = field(default_factory=StageTimes)
    occupancy: Occupancy = field(default_factory=Occupancy)
    captures: dict[str, CaptureCost] = field(default_factory=dict)

    def launched(self, mode: Mode, rows: int, width: int = 0) -> None:
        """A step of `rows` requests was launched."""
        if mode is Mode.EXTEND:
            self.extend_steps += 1
        elif mode is Mode.VERIFY:
            self.decode_steps += 1
            self.decode_rows += rows
            self.widths[width] += 1
        self.peak_running = max(self.peak_running, rows)

    def applied(self, mode: Mode, rows: int, tokens: int, accepted: int = 0, drafted: int = 0) -> None:
        """A step's result reached the requests: `rows` of them were still alive and got `tokens` in all."""
        self.emitted_tokens += tokens
        self.accepted_drafts += accepted
        self.drafted_tokens += drafted
        if mode is Mode.VERIFY:
            self.decode_tokens += tokens
            self.decode_results += rows

    def count(self, metric: str) -> None:
        """Add one to the counter of that name."""
        setattr(self, metric, getattr(self, metric) + 1)

    def waited(self, seconds: float, *, later_queued: bool) -> None:
        """The host stood still for the device."""
        if later_queued:
            self.back_pressure_waits += 1
            self.back_pressure_seconds += seconds
        else:
            self.host_waits += 1
            self.host_wait_seconds += seconds

    def device_worked(self, wall: float, busy: float) -> None:
        """A result was read at `wall` seconds, when the device had been at work for `busy` seconds in all."""
        self.device_seconds = busy
        self.occupancy.note(wall, busy)

    @property
    def forward_occupancy(self) -> float | None:
        """Share of the latest steps' wall time in which the device executed them; None: too few so far."""
        return self.occupancy.share

    @property
    def compiled_kernels(self) -> int:
        """Kernels that this process has compiled so far; a serving engine adds none."""
        return COMPILED.total

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """What happens inside is counted nowhere: it serves nobody."""
        before = {f.name: getattr(self, f.name) for f in fields(self) if f.type in ("int", "float")}
        widths = Counter(self.widths)
        yield
        for name, value in before.items():
            setattr(self, name, value)
        self.widths = widths

    def snapshot(self) -> dict[str, Number]:
        """All plain counters by name."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.type in ("int", "float")}
        return {**own, "compiled_kernels": self.compiled_kernels}

    def spec_counts(self) -> SpecCounts:
        """What is known of drafts so far; for differences."""
        return SpecCounts(Counter(self.runs), Counter(self.widths), self.stages.seconds())


def difference(before: Mapping[str, Number], after: Mapping[str, Number]) -> dict[str, Number]:
    """What happened between two snapshots: a warm-up or an earlier run never leaks into a report.

    peak_running is a maximum, no sum: the later one is kept.
    """
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    return {**grown, "peak_running": after.get("peak_running", 0)}


def rates(counts: Mapping[str, Number]) -> dict[str, float | None]:
    """Derived figures of a difference: null where nothing of the kind ran.

    accept_length: tokens that a request gets from a decode step (1.0 without speculation), counted after
    trimming. decode_batch: requests in a decode step. forward_occupancy: share of the wall time with
    unfinished requests in which the device was executing a step; of eager steps it counts the gaps between
    launches too.
    """
    decodes, rows = counts["decode_steps"], counts["decode_rows"]
    drafted = counts["drafted_tokens"]
    steps = decodes + counts["extend_steps"]
    return {
        "host_waits_per_step": _ratio(counts["host_waits"], steps),
        "back_pressure_waits_per_step": _ratio(counts["back_pressure_waits"], steps),
        "forward_occupancy": _ratio(counts["device_seconds"], counts["serving_seconds"]),
        "host_ms_per_step": _ratio(1e3 * counts["host_seconds"], steps),
        "accept_length": _ratio(counts["decode_tokens"], counts["decode_results"]),
        "decode_batch": _ratio(rows, decodes),
        "eager_decode_share": _ratio(counts["eager_decode_steps"], decodes),
        "cached_share": _ratio(counts["cached_tokens"], counts["prompt_tokens"]),
        "accept_rate": _ratio(counts["accepted_drafts"], drafted),
    }


def _ratio(part: Number, whole: Number) -> float | None:
    return part / whole if whole else None
