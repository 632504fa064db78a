"""`python -m benchmarks.startup`: how long a command takes to answer, and the memory of the default run.

Runs the command line in processes of its own, with a warm model cache, and judges by the project's bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.code_state import PACKAGE_ROOT
from engine.provenance import machine, versions

KIB = 1024


@dataclass(frozen=True)
class Finished:
    """One process: wall seconds, peak resident bytes, its standard output."""

    seconds: float
    peak_bytes: int
    stdout: str
    started_at: float


def run(*arguments: str) -> Finished:
    """The command line in a scratch folder. Raises when it fails."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as out:
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
        command = [sys.executable, "-P", "-m", "engine", *arguments]
        started_at, start = time.time(), time.perf_counter()
        process = subprocess.Popen(
            command, cwd=scratch, env=environment, stdout=out, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return Finished(seconds, usage.ru_maxrss * KIB, text, started_at)


def quick(repeats: int, *arguments: str) -> float:
    """Median wall seconds, after one run that warms the file cache."""
    run(*arguments)
    return statistics.median(run(*arguments).seconds for _ in range(repeats))


def default_run(repeats: int) -> tuple[float, int]:
    """(median seconds from the start of the process to the first token, largest peak memory in bytes)."""
    firsts, peaks = [], []
    for _ in range(repeats + 1):
        done = run("task.format=json")
        firsts.append(json.loads(done.stdout)["first_token_at"] - done.started_at)
        peaks.append(done.peak_bytes)
    return statistics.median(firsts[1:]), max(peaks)


def measure(repeats: int) -> list[dict[str, Any]]:
    """(what, measured, bound, unit) of every claim."""
    first, peak = default_run(repeats)
    rows = [
        ("--help, warm", quick(repeats, "--help"), 1.0, "s"),
        ("task=explain, warm", quick(repeats, "task=explain"), 1.0, "s"),
        ("first token of the default command, warm cache", first, 15.0, "s"),
        ("peak memory of the default command", peak / 2**30, 1.5, "GiB"),
    ]
    return [
        {"what": what, "value": value, "limit": limit, "unit": unit, "met": value <= limit}
        for what, value, limit, unit in rows
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout; exit code 1 when a bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the report there too")
    options = parser.parse_args(arguments)
    rows = measure(options.repeats)
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        "rows": rows,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{report['machine']['cpu']}, {report['machine']['cores']} cores, {report['date']}\n")
    print("| figure | measured | bound | met |\n|---|---|---|---|")
    for row in rows:
        met = "yes" if row["met"] else "NO"
        print(
            f"| {row['what']} | {row['value']:.2f} {row['unit']} | <= {row['limit']} {row['unit']} | {met} |"
        )
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
