"""What keeping a run's course costs: the recorder's time and bytes a step, beside the host's own work.

`python -m benchmarks.recording`. A model without arithmetic, so the host's work is all there is. What one run
told is told to fresh recorders again and again; the quickest time counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.batch import ScheduledStep
from engine.llm import LLM
from engine.params import SamplingParams
from engine.replay.recorder import Recorder
from engine.request import Request
from engine.rules import compose_checked
from engine.scheduling.tape import Tape

CASES = ((1, 200), (8, 200), (64, 200), (1, 200, "spec=ngram"), (64, 200, "spec=ngram"))
FAKE = ("model=fake", "threads=1", "seed=1", "attention=torch", "device=cpu")


@dataclass(frozen=True)
class Share:
    """Of one case, a step: seconds of the host's work, of the recorder, bytes of the file."""

    host: float
    recorder: float
    size: float


class Told(Tape):
    """Keeps what it is told, to be told again."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any, Any]] = []
        self.steps = 0

    def arrived(self, request: Request, applied: int) -> None:
        self.calls.append(("arrived", request, applied))

    def launched(self, step: ScheduledStep, requests: Sequence[Request]) -> None:
        self.steps += 1
        self.calls.append(("launched", step, requests))

    def ended(self, request: Request, applied: int) -> None:
        self.calls.append(("ended", request, applied))


def share(batch: int, tokens: int, *overrides: str, repeats: int = 9) -> Share:
    """Twice as many requests as fit a step, of `tokens` tokens on average, so that they come and go."""
    told = Told()
    config = compose_checked([*FAKE, f"scheduler.max_running={batch}", *overrides]).cfg
    lengths = [tokens // 2 + (7 * i) % tokens for i in range(2 * batch)]
    with LLM.from_config(config, parts={"tape": told}) as llm:
        llm.generate([[65] * 20], SamplingParams(max_tokens=8))  # warm-up
        told.calls.clear()
        told.steps, before = 0, llm.metrics.host_seconds
        prompts = [[66 + i % 20] * (20 + i % 7) for i in range(2 * batch)]
        llm.generate(prompts, [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths])
        host = llm.metrics.host_seconds - before
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "schedule.jsonl"
        seconds = min(_seconds(told, file) for _ in range(repeats))
        return Share(host / told.steps, seconds / told.steps, file.stat().st_size / told.steps)


def _seconds(told: Told, file: Path) -> float:
    recorder = Recorder(file)
    calls = [(getattr(recorder, name), a, b) for name, a, b in told.calls]
    start = time.perf_counter()
    for call, a, b in calls:
        call(a, b)
    recorder.close()
    return time.perf_counter() - start


def main() -> None:
    """One line a case."""
    torch.set_num_threads(1)
    print("requests a step  overrides   host us/step  recorder us/step  share   bytes/step")
    for batch, tokens, *overrides in CASES:
        found = share(batch, tokens, *overrides)
        print(
            f"{batch:>15}  {' '.join(overrides) or '-':<10}  {1e6 * found.host:>12.1f}"
            f"  {1e6 * found.recorder:>16.2f}  {found.recorder / found.host:>5.2%}  {found.size:>11.1f}"
        )


if __name__ == "__main__":
    main()
