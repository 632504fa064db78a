"""The figures of a benchmark, their medians, and what a reader must be warned of. Runs nothing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.metrics import rates
from engine.spec_metrics import NOTHING, SpecCounts
from engine.tasks.bench_spec import spec_lines
from engine.tasks.drive import Answer
from engine.tasks.report import median, percentiles, token_gaps
from engine.workloads.base import Workload

if TYPE_CHECKING:
    from engine.answers import Completion

UNFAIR = "not representative"
MARKS = (UNFAIR, "simulated", "raw prompts")  # beginnings of warnings that stand beside the figures
NOISE_SHARE = 0.1  # spread of the repeats, around their median, that a reader is warned of
EAGER_SHARE = 0.05  # decode steps outside a graph that a graph user is warned of


@dataclass(frozen=True)
class Goal:
    """What a request may take so that it counts as served well; None: no limit. The limits make a goodput."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    @property
    def set(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def met(self, answer: Answer) -> bool:
        """Whether every sample of the request kept to the limits. A request that was cut did not."""
        return not answer.cut and all(
            _within(1e3 * first_token(answer, sample), self.ttft_ms)
            and _within(1e3 * (per_token(sample) or 0.0), self.tpot_ms)
            for sample in answer.samples
            if sample.token_times
        )


@dataclass(frozen=True)
class Measured:
    """One run: its answers, its wall time, the growth of the engine's counters, and what came of drafts."""

    answers: Sequence[Answer]
    seconds: float
    counts: Mapping[str, int | float]
    spec: SpecCounts = NOTHING


def figures(run: Measured, goal: Goal = Goal()) -> dict[str, Any]:
    """Throughput and latency of one run. ms throughout.

    ttft_ms: to the first token. tpot_ms: a request's mean time for each token after it. e2e_ms: to the last
    one. All three count from the request's arrival, where arrivals have times (late_ms: what of it passed
    before the engine got the request). itl_ms counts every token after a request's first.
    decode_step_ms: the median time between two steps that gave tokens to one request.
    """
    output = sum(answer.tokens for answer in run.answers)
    prompt = sum(len(answer.job.ids) for answer in run.answers)
    samples = [(answer, s) for answer in run.answers for s in answer.samples if s.token_times]
    times = [s.token_times for _, s in samples]
    gaps = [1e3 * gap for own in times for gap in token_gaps(own)]
    return {
        "seconds": run.seconds,
        "output_tokens": output,
        "prompt_tokens": prompt,
        "output_tokens_per_s": output / run.seconds,
        "total_tokens_per_s": (output + prompt) / run.seconds,
        "requests_per_s": len(run.answers) / run.seconds,
        "ttft_ms": percentiles([1e3 * first_token(a, s) for a, s in samples]),
        "tpot_ms": percentiles([1e3 * mean for _, s in samples if (mean := per_token(s)) is not None]),
        "e2e_ms": percentiles([1e3 * (a.late + s.token_times[-1]) for a, s in samples]),
        "late_ms": percentiles([1e3 * answer.late for answer in run.answers]),
        "goodput_per_s": sum(map(goal.met, run.answers)) / run.seconds if goal.set else None,
        "itl_ms": percentiles(gaps),
        "decode_step_ms": median([1e3 * gap for own in times for gap in _step_gaps(own)]),
        **rates(run.counts),
        "metrics": dict(run.counts),
    }


def first_token(answer: Answer, sample: Completion) -> float:
    """Seconds from the request's arrival to the sample's first token."""
    return answer.late + sample.token_times[0]


def per_token(sample: Completion) -> float | None:
    """Seconds a token, of those after the first; None where there are none."""
    times = sample.token_times
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def _within(value: float, limit: float | None) -> bool:
    return limit is None or value <= limit


def medians(runs: Sequence[Measured], goal: Goal = Goal()) -> dict[str, Any]:
    """Key by key over the runs; each run's own figures stay under `runs`."""
    each = [figures(run, goal) for run in runs]
    return {**(_median_of(each) if each else {}), "runs": each}


def warnings_of(workload: Workload, runs: Sequence[Measured], ignore_eos: bool) -> list[str]:
    """What would mislead a reader who sees the numbers alone."""
    drafted = sum(run.counts["drafted_tokens"] for run in runs)
    found = []
    if drafted and not workload.representative:
        found.append(
            "not representative: the workload is random tokens, whose acceptance says nothing of text"
        )
    if drafted and ignore_eos:
        found.append(f"{UNFAIR}: text after its end repeats itself, which flatters a drafter")
    decodes = sum(run.counts["decode_steps"] for run in runs)
    eager = sum(run.counts["eager_decode_steps"] for run in runs)
    if decodes and eager / decodes > EAGER_SHARE:
        found.append(f"{eager / decodes:.0%} of the decode steps ran outside a graph although graphs are on")
    speeds = sorted(sum(a.tokens for a in run.answers) / run.seconds for run in runs)
    if len(speeds) > 1 and speeds[-1] - speeds[0] > 2 * NOISE_SHARE * statistics.median(speeds):
        found.append(
            f"noisy: the repeats ran at {speeds[0]:.1f} to {speeds[-1]:.1f} output tokens/s; "
            "is something else using this machine?"
        )
    if any(answer.cut for run in runs for answer in run.answers):
        found.append("some answers were cancelled")
    return found


def stop_warnings(runs: Sequence[Measured], repeats: int) -> list[str]:
    """What a benchmark that was stopped does not show."""
    if not runs:
        return ["stopped before the first counted run had ended: there are no figures yet"]
    return [f"stopped after {len(runs)} of {repeats} counted runs"]


def bench_table(result: Mapping[str, Any]) -> str:
    """The figures for a person."""
    mark = "".join(
        f", {word.upper()}" for word in MARKS if any(line.startswith(word) for line in result["warnings"])
    )
    claim = mark.lower().replace(", ", " (", 1) + ")" if mark else ""
    how_many = f"{result['requests']} requests, {result['output_tokens']:.0f} output tokens"
    lines = [
        f"{result['model']} in {result['dtype']} on {result['device']}",
        f"{how_many}, median of {result['repeats']} run(s) after {result['warmup']} warm-up{mark}",
        f"  output tokens/s    {result['output_tokens_per_s']:10.1f}",
        f"  total tokens/s     {result['total_tokens_per_s']:10.1f}",
        f"  requests/s         {result['requests_per_s']:10.2f}",
        f"  time to first token, ms      {_spread(result['ttft_ms'])}",
        f"  time per output token, ms    {_spread(result['tpot_ms'])}",
        f"  inter-token latency, ms      {_spread(result['itl_ms'])}",
        f"  end to end, ms               {_spread(result['e2e_ms'])}",
        *_goodput(result),
        f"  decode step, ms    {_number(result['decode_step_ms']):>10}",
        f"  requests a step    {_number(result['decode_batch']):>10}",
        f"  tokens a step and request {_number(result['accept_length'])}",
        *spec_lines(result, claim),
        f"  host waits a step  {_number(result['host_waits_per_step'], 4):>10}",
        f"  back-pressure waits a step {_number(result['back_pressure_waits_per_step'], 4)}",
        f"  device at work     {_share(result['forward_occupancy']):>10}",
        f"  host work a step, ms {_number(result['host_ms_per_step'], 3):>8}",
        f"  peak memory        {result['peak_memory_bytes'] / 2**20:10.0f} MiB",
    ]
    return "\n".join(lines + [f"  ! {line}" for line in result["warnings"]])


def _goodput(result: Mapping[str, Any]) -> list[str]:
    """The line of it, where limits were set."""
    value = result["goodput_per_s"]
    return [] if value is None else [f"  requests/s in time {value:10.2f}"]


def _step_gaps(times: Sequence[float]) -> list[float]:
    steps = sorted(set(times))
    return [later - earlier for earlier, later in itertools.pairwise(steps)]


def _median_of(rows: Sequence[Any]) -> Any:
    """The median of numbers, mapping by mapping; null stays null only where no run knows better."""
    if isinstance(rows[0], Mapping):
        return {key: _median_of([row[key] for row in rows]) for key in rows[0]}
    return median(rows)


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _spread(values: Mapping[str, float | None]) -> str:
    return "  ".join(f"{name} {_number(value)}" for name, value in values.items())
