"""`python -m benchmarks.first_token [OVERRIDES]`: from the start of a process to its first token, by phase.

Warm: compiled kernels and tables of choices are found on disk. Cold: Triton's cache is an empty folder. Knows
the order in which an engine's parts are built, and what none of them does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import tables

# Parts of the container that take time, in the order of their needs; the rest is built with them.
PHASES = {
    "device": "device",
    "weights": "loaded",
    "draft": "draft",
    "KV pool": "pool",
    "attention": "attention",
    "table and step": "step",
    "graphs": "captured",
    "step costs": "costs",
    "scheduler": "loop",
}
SHARED = (
    "metrics",
    "queue",
    "source",
    "plan",
    "policy",
    "sizes",
    "speculator",
    "table",
    "scheduler",
    "budget",
)
CHILD = "--child"


def child(began: float, overrides: Sequence[str]) -> dict[str, float]:
    """Seconds by phase, in this process; began: time.time() of its start."""
    import torch  # noqa: F401

    from engine import LLM, SamplingParams
    from engine.container import EngineContainer
    from engine.rules import compose_checked

    seconds = {"interpreter and imports": time.time() - began}
    last = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[name], last = now - last, now

    config = compose_checked(overrides).cfg
    lap("config and rules")
    container = EngineContainer()
    container.config.from_dict(dict(config))
    parts: dict[str, Any] = {}
    for name, part in PHASES.items():
        parts[part] = getattr(container, part)()
        lap(name)
    parts |= {name: getattr(container, name)() for name in SHARED}
    with LLM.from_config(config, parts=parts) as llm:
        next(iter(llm.stream([5, 6, 7], SamplingParams(max_tokens=1, ignore_eos=True))))
        lap("first token")
    return seconds


def started(overrides: Sequence[str], cache: str | None) -> dict[str, float]:
    """The same of a new process, and its whole time. cache: a folder for Triton's cache, None: the user's."""
    environment = {**os.environ, **({} if cache is None else {"TRITON_CACHE_DIR": cache})}
    began = time.time()
    command = [sys.executable, "-m", "benchmarks.first_token", CHILD, repr(began), *overrides]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**seconds, "all": sum(seconds.values())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == [CHILD]:
        print(json.dumps(child(float(given[1]), given[2:])))
        return 0
    made = tables.parser(__doc__)
    made.add_argument("--cold", action="store_true", help="once more with an empty Triton cache, first")
    parsed = made.parse_args(given)
    runs: dict[str, dict[str, float]] = {}
    if parsed.cold:
        with tempfile.TemporaryDirectory() as cache:
            tables.say("cold start")
            runs["cold, s"] = started(parsed.overrides, cache)
    else:
        started(parsed.overrides, None)  # fills the caches
    tables.say("warm start")
    runs["warm, s"] = started(parsed.overrides, None)
    rows = [{"phase": name, **{run: own[name] for run, own in runs.items()}} for name in runs["warm, s"]]
    title = f"From the start of the process to the first token, {' '.join(parsed.overrides)}"
    import torch

    device = "cpu" if "device=cpu" in parsed.overrides or not torch.cuda.is_available() else "cuda:0"
    tables.publish(tables.heading(device), [tables.Section(title, rows)], parsed.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
