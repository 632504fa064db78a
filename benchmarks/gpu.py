"""`python -m benchmarks.gpu FOLDER`: all GPU benchmarks, each in its own process; one page, one JSON file.

A benchmark that fails leaves its last lines on the page, and the others go on. Knows commands, no figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import say

LARGE = ("model=dummy", "model.like=llama-3.1-8b", "model.dtype=bfloat16")
SMALL = ("model=smollm2", "model.dtype=bfloat16")
FAST = ("device=cuda", "attention=triton", "graph=step")
EAGER = ("device=cuda", "attention=triton")


@dataclass(frozen=True)
class Run:
    """One command. name: of its files."""

    name: str
    module: str
    arguments: tuple[str, ...]


def runs(models: Sequence[str]) -> list[Run]:
    """The commands, those of the first model first."""
    found: list[Run] = []
    for name in models:
        model = LARGE if name == "8b" else SMALL
        found += [
            Run(f"{name}-decode", "decode", (*model, *FAST)),
            Run(f"{name}-drafts", "spec_steps", (*model, *FAST)),
            Run(
                f"{name}-throughput",
                "throughput",
                (*model, *FAST),
            ),
            Run(f"{name}-prefill", "prefill", (*model, *EAGER)),
            Run(
                f"{name}-overlap",
                "decode",
                (*model, *FAST, "--against", "overlap=none", "--batches", "1,8,32,64"),
            ),
            Run(
                f"{name}-tbo",
                "decode",
                (
                    *model,
                    *FAST,
                    "--against",
                    "tbo=two_batch",
                    "--against",
                    "tbo.min_tokens=2",
                    "--batches",
                    "8,64,256",
                ),
            ),
            Run(f"{name}-start", "first_token", (*model, *FAST, "--cold")),
            Run(f"{name}-references", "references", (*model, *FAST)),
        ]
    return found


def run(one: Run, folder: Path, limit: float) -> str:
    """Its Markdown, or why there is none."""
    command = [sys.executable, "-m", f"benchmarks.{one.module}", *one.arguments]
    command += ["--json", str(folder / f"{one.name}.json")]
    say(f"{one.name}: {' '.join(command[1:])}")
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as stopped:
        said = (stopped.stderr or b"").decode(errors="replace")
        (folder / f"{one.name}.log").write_text(said, encoding="utf-8")
        return f"### {one.name}\n\nstopped after {limit:.0f} s\n\n```\n{_end_of(said, 12)}\n```"
    (folder / f"{one.name}.log").write_text(done.stderr, encoding="utf-8")
    say(f"{one.name}: {time.perf_counter() - start:.0f} s, exit code {done.returncode}")
    if done.returncode:
        return f"### {one.name}\n\nexit code {done.returncode}\n\n```\n{_end_of(done.stderr, 6)}\n```"
    return done.stdout.strip()


def _end_of(text: str, lines: int) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def main(arguments: Sequence[str] | None = None) -> int:
    """report.md and report.json in the folder; exit code 1 when a benchmark failed."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("folder", type=Path)
    made.add_argument("--models", nargs="+", choices=["8b", "smollm2"], default=["8b", "smollm2"])
    made.add_argument("--only", nargs="+", default=[], help="parts of names: decode, drafts, prefill, ...")
    made.add_argument("--limit", type=float, default=300, help="seconds for each")
    given = made.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    pages, reports = [], {}
    for one in runs(given.models):
        if given.only and not any(part in one.name for part in given.only):
            continue
        pages.append(run(one, given.folder, given.limit))
        place = given.folder / f"{one.name}.json"
        reports[one.name] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
        (given.folder / "report.md").write_text("\n\n".join(pages) + "\n", encoding="utf-8")
        (given.folder / "report.json").write_text(json.dumps(reports, indent=1) + "\n", encoding="utf-8")
    print((given.folder / "report.md").read_text(encoding="utf-8"))
    return 0 if all(report is not None for report in reports.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
