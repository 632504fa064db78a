"""Sweep folders as sweeps leave them, written file by file: results in the form of task=bench.

Figures are made up by formulas, so that tests know what a report has to say.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VERSIONS = {"syncless": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}
Tree = dict[str, Any]


def bench(
    speeds: Sequence[float],
    *,
    ttft: float = 20.0,
    itl: float = 5.0,
    accepted: Sequence[float] = (),
    representative: bool = True,
    **more: Any,
) -> Tree:
    """result.json of task=bench: one repeat for each of `speeds`, in output tokens/s. accepted: share of
    accepted drafts by depth; none: plain decoding."""
    runs = [_run(speed, ttft * speeds[0] / speed, itl * speeds[0] / speed, accepted) for speed in speeds]
    middle = sorted(runs, key=lambda run: float(run["output_tokens_per_s"]))[len(runs) // 2]
    length = middle["accept_length"]
    spec = None
    if accepted:
        shares = {"draft": 0.15, "verify": 0.6, "learn": 0.1, "other": 0.15}
        spec = {
            "proposed": 400,
            "accepted": 100,
            "emitted": 240,
            "accept_length_histogram": {"1": 60, "2": 40},
            "acceptance_per_position": list(accepted),
            "widths": {str(1 + len(accepted)): 100},
            "time_shares": shares,
            "draft_too_long": 0,
            "simulated_accept_length": None,
        }
    result = {
        "task": "bench",
        "interrupted": False,
        **middle,
        "runs": runs,
        "spec": spec,
        "speedup": 1.25 if accepted else None,
        "step_cost": 1.3 if accepted else None,
        "plain": None,
        "peak_memory_bytes": 400 * 2**20,
        "requests": 8,
        "concurrency": None,
        "warmup": 1,
        "repeats": len(runs),
        "ignore_eos": False,
        "seed": 7,
        "model": "tiny",
        "device": "cpu",
        "dtype": "float32",
        "representative": representative,
        "warnings": [],
    }
    assert length is not None
    return {**result, **more}


def _run(speed: float, ttft: float, itl: float, accepted: Sequence[float]) -> Tree:
    length = 1.0 + sum(math.prod(accepted[:n]) for n in range(1, len(accepted) + 1))
    return {
        "seconds": 240 / speed,
        "output_tokens": 240,
        "prompt_tokens": 544,
        "output_tokens_per_s": speed,
        "total_tokens_per_s": speed * 784 / 240,
        "requests_per_s": speed / 30,
        "ttft_ms": {"p50": ttft, "p90": 1.4 * ttft, "p99": 2.1 * ttft},
        "e2e_ms": {"p50": ttft + 30 * itl, "p90": 2 * ttft + 40 * itl, "p99": 3 * ttft + 50 * itl},
        "itl_ms": {"p50": itl, "p90": 1.3 * itl, "p99": 1.9 * itl},
        "decode_step_ms": itl * length,
        "host_waits_per_step": 0.0625,
        "back_pressure_waits_per_step": 0.9375,
        "host_ms_per_step": 0.61,
        "accept_length": length,
        "decode_batch": 8.0,
        "eager_decode_share": 0.0,
        "cached_share": 0.0,
        "accept_rate": 0.25 if accepted else None,
        "metrics": {
            "decode_steps": 100,
            "eager_decode_steps": 0,
            "drafted_tokens": 400 if accepted else 0,
            "accepted_drafts": 100 if accepted else 0,
        },
    }


def cell(varied: Mapping[str, Any], *, reason: str | None = None, extra: Sequence[str] = ()) -> Tree:
    """A cell of the manifest. reason: why the rules reject it."""
    overrides = [
        "task=bench",
        "model=tiny",
        *extra,
        *(f"{key}={_typed(value)}" for key, value in varied.items()),
    ]
    groups = {key: value for key, value in varied.items() if "." not in key}
    return {
        "id": hashlib.sha256(repr(overrides).encode()).hexdigest()[:12],
        "overrides": overrides,
        "choices": {"task": "bench", "model": "tiny", "cache": "radix", **groups},
        "varied": dict(varied),
        "verdict": "ok" if reason is None else "rejected",
        "reason": reason,
    }


def write_sweep(
    folder: Path,
    cells: Sequence[Tree],
    *,
    baseline: Sequence[str] | None = None,
    study: str | None = None,
    **more: Any,
) -> Path:
    """The folder with its manifest, before the first job."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "version": 1,
        "created": "2026-11-29T23:10:00+00:00",
        "command": ["python", "-m", "engine", "-m"],
        "study": study,
        "baseline": baseline,
        "cells": list(cells),
        **more,
    }
    (folder / "sweep.json").write_text(json.dumps(manifest))
    return folder


def write_job(
    folder: Path,
    cell: Tree,
    result: Tree | None = None,
    *,
    state: str = "finished",
    reason: str | None = None,
    commit: str = "0123456789abcdef",
    device: str = "AMD EPYC",
    log: str = "",
) -> Path:
    """One cell's run folder, as its job leaves it."""
    job = folder / "jobs" / str(cell["id"])
    job.mkdir(parents=True)
    document = {
        "id": cell["id"],
        "state": state,
        "reason": reason,
        "exit_code": 0 if state == "finished" else 1,
        "seconds": 12.5,
        "started": "2026-11-29T23:10:00+00:00",
        "ended": "2026-11-29T23:10:12+00:00",
        "attempt": 1,
    }
    facts = {
        "overrides": cell["overrides"],
        "config_hash": str(cell["id"]) * 5,
        "seed": 7,
        "git": {"commit": commit, "dirty": False},
        "versions": VERSIONS,
        "machine": {"platform": "Linux", "cpu": device, "cores": 2},
        "device": "cpu",
        "device_name": device,
    }
    (job / "job.json").write_text(json.dumps(document))
    (job / "run.json").write_text(json.dumps(facts))
    (job / "log.txt").write_text(log)
    if result is not None:
        (job / "result.json").write_text(json.dumps(result))
    return job


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
