"""`python -m benchmarks.step_kernels [OVERRIDES]`: the kernels of a decode step, and what each takes.

Read off the profiler while an engine decodes in steady state; kernels of a CUDA graph are seen one by one.
The profiler slows the host, so the time of a step is measured without it. Knows no kernel by name.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks import tables
from benchmarks.stepping import decode, steady
from engine import LLM

STEPS = 8  # that are watched


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel on the device. start, seconds."""

    name: str
    start: float
    seconds: float

    @property
    def end(self) -> float:
        """Seconds."""
        return self.start + self.seconds


def watch(llm: LLM, batch: int, context: int) -> tuple[list[Kernel], int]:
    """Every kernel that ran during the steps, in order, and how many steps those were."""
    from torch.profiler import ProfilerActivity, profile

    with steady(llm, batch, context) as go:
        before = llm.metrics.decode_steps
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            go(STEPS)
        steps = llm.metrics.decode_steps - before
    events = [event for event in seen.events() or () if event.device_type.name == "CUDA"]
    kernels = [Kernel(e.name, e.time_range.start / 1e6, e.time_range.elapsed_us() / 1e6) for e in events]
    return sorted(kernels, key=lambda kernel: kernel.start), steps


def additions(kernels: Iterable[Kernel]) -> list[tuple[Kernel, float]]:
    """Each with the seconds by which it ended after all that ended before it, in the order of their ends.

    Kernels that are launched dependently run side by side, and wait while they do: their own times say
    little. These add up to the time from the first end to the last.
    """
    found, last = [], None
    for kernel in sorted(kernels, key=lambda kernel: kernel.end):
        found.append((kernel, 0.0 if last is None else kernel.end - last))
        last = kernel.end
    return found


def by_name(kernels: Iterable[Kernel], steps: int) -> list[tables.Row]:
    """One row a kernel, what adds most to a step first: microseconds that it adds, and that it runs."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for kernel, added in additions(kernels):
        times[kernel.name].append((added, kernel.seconds))
    rows: list[tables.Row] = []
    for name, own in times.items():
        added, ran = (1e6 * sum(column) for column in zip(*own, strict=True))
        rows.append(
            {
                "kernel": name[:70],
                "runs a step": len(own) / steps,
                "adds to a step, us": added / steps,
                "a run adds, us": added / len(own),
                "a run takes, us": ran / len(own),
            }
        )
    return sorted(rows, key=lambda row: -row["adds to a step, us"])


def total(kernels: Sequence[Kernel], steps: int, batch: int, step: float) -> tables.Row:
    """The whole step. Side by side kernels count twice in `kernels, us`."""
    inside = sum(kernel.seconds for kernel in kernels) / steps
    return {
        "batch": batch,
        "us a step": 1e6 * step,
        "kernels a step": len(kernels) / steps,
        "kernels, us": 1e6 * inside,
        "between kernels, us": 1e6 * (step - inside),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--batches", type=tables.numbers, default=[1])
    made.add_argument("--context", type=int, default=256)
    made.add_argument("--most", type=int, default=40, help="kernels listed")
    given = made.parse_args(arguments)
    usual = ("cache=none", f"scheduler.max_running={max(given.batches)}")
    totals: list[tables.Row] = []
    sections = []
    with LLM(*tables.preferring(given.overrides, *usual)) as llm:
        if not llm.device.startswith("cuda"):
            print(f"nothing to be seen: device={llm.device} is no GPU", file=sys.stderr)
            return 1
        for batch in given.batches:
            tables.say(f"batch {batch}")
            step = decode(llm, batch, given.context).seconds
            kernels, steps = watch(llm, batch, given.context)
            totals.append(total(kernels, steps, batch, step))
            sections.append(
                tables.Section(f"Kernels at batch {batch}", by_name(kernels, steps)[: given.most])
            )
        device = llm.device
    title = f"Decode steps, {' '.join(given.overrides)}"
    tables.publish(tables.heading(device), [tables.Section(title, totals), *sections], given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
