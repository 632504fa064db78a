"""What a card draws while something runs, as its driver tells: watts, and the clock that this leaves.

Asks nvidia-smi beside the work, twenty times a second; knows nothing of the work.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

import torch

FIELDS = "power.draw.instant,clocks.sm,power.limit"
EVERY = 50  # milliseconds


@dataclass(frozen=True)
class Power:
    """watts drawn and megahertz of the multiprocessors, medians; limit: watts that the card may draw."""

    watts: float
    megahertz: float
    limit: float


class Meter:
    """Reads a card's power in a `with` block; `found` is what it drew in the later half of it, when the clock
    has settled: None where the driver does not tell."""

    def __init__(self, device: torch.device) -> None:
        self.found: Power | None = None
        self._command = command(str(torch.cuda.get_device_properties(device).uuid))
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Meter:
        try:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:  # no nvidia-smi here
            self._process = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self.found = settled(self._process.communicate()[0].splitlines())


def command(uuid: str) -> list[str]:
    """The question for the card of that name, without its prefix as torch has it."""
    card = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    asked = f"--query-gpu={FIELDS}"
    return ["nvidia-smi", f"--id={card}", asked, "--format=csv,noheader,nounits", f"--loop-ms={EVERY}"]


def settled(lines: Sequence[str]) -> Power | None:
    """Of the answers, oldest first; None without one that holds figures."""
    answers = [answer for answer in map(_figures, lines) if answer is not None]
    later = answers[len(answers) // 2 :]
    return Power(*map(statistics.median, zip(*later, strict=True))) if later else None


def _figures(line: str) -> tuple[float, ...] | None:
    """A line's figures; None where one is not known, or the line was cut."""
    try:
        found = tuple(float(value) for value in line.split(","))
    except ValueError:
        return None
    return found if len(found) == len(FIELDS.split(",")) else None
