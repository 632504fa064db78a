"""`python -m benchmarks.cpu`: the CPU numbers of docs/results.md, as ratios within one run on one machine.

Contenders take turns, so that a machine that slows down slows them all; every figure is a median of repeats.
Knows what is published and its bounds; not how a contender works.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import BareLoop, Contender, LlamaCpp, Prompts, Syncless, Transformers
from engine import LLM, SamplingParams
from engine.code_state import PACKAGE_ROOT, git_state
from engine.models.embedded import embedded_file
from engine.provenance import machine, versions
from engine.workloads.base import Workload
from engine.workloads.builtin import BuiltinPrompts

Times = dict[tuple[str, int], list[float]]  # (contender, batch) -> seconds of each repeat
HOST_STEPS = 200


@dataclass(frozen=True)
class Bound:
    """One claim: the figure must be at least (or at most) the limit."""

    what: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def prompts_of(llm: LLM, count: int) -> list[list[int]]:
    """The package's built-in prompts through the chat template, as token ids."""
    items = BuiltinPrompts(Workload.Config(limit=count)).items(0)
    chats = [item.messages or ({"role": "user", "content": item.title()},) for item in items]
    return [llm.tokenizer.encode_chat(chat) for chat in chats]


def take_turns(contenders: Sequence[Contender], prompts: Prompts, tokens: int, repeats: int) -> Times:
    """Warm every contender up, then let them run in turn."""
    turns = [(c, batch) for batch in (1, 8) for c in contenders if batch in c.batches]
    for contender, batch in turns:
        contender.run(prompts[:batch], 8)
    times: Times = {(c.name, batch): [] for c, batch in turns}
    for repeat in range(repeats):
        for contender, batch in turns:
            start = time.perf_counter()
            made = contender.run(prompts[:batch], tokens)
            times[contender.name, batch].append(time.perf_counter() - start)
            assert [len(ids) for ids in made] == [tokens] * batch, (
                f"{contender.name} made another number of tokens"
            )
        print(f"repeat {repeat + 1} of {repeats} done", file=sys.stderr)
    return times


def ratio(times: Times, faster: str, slower: str, batch: int) -> float:
    """Median over the repeats of how many times as fast; both of a repeat ran one after the other."""
    pairs = zip(times[slower, batch], times[faster, batch], strict=True)
    return statistics.median(slow / fast for slow, fast in pairs)


def fake_step_ms(batch: int) -> tuple[float, float]:
    """(host, whole): median milliseconds of a decode step with a model that costs nothing.

    host: schedule, pack, launch, apply. whole: the wall time, that is with the step's own tensor operations,
    which on a CPU run in the same thread.
    """
    hosts: list[float] = []
    wholes: list[float] = []
    with LLM("model=fake", "threads=1", "cache=none", f"scheduler.max_running={batch}") as llm:
        params = SamplingParams(max_tokens=HOST_STEPS + 50, ignore_eos=True)
        for number in range(batch):
            llm.add([1 + number, 2, 3], params)
        metrics = llm.metrics
        while len(hosts) < HOST_STEPS:
            before, decodes, start = metrics.host_seconds, metrics.decode_steps, time.perf_counter()
            llm.step()
            if metrics.decode_steps > decodes > 10:
                hosts.append(metrics.host_seconds - before)
                wholes.append(time.perf_counter() - start)
    return 1e3 * statistics.median(hosts), 1e3 * statistics.median(wholes)


def bounds(times: Times, host: dict[int, float]) -> list[Bound]:
    """The claims of the project about a CPU."""
    found = []
    for batch, limit in ((1, 2.2), (8, 1.8)):
        value = ratio(times, "syncless int4", "transformers bf16", batch)
        found.append(Bound(f"int4 against transformers bf16, batch {batch}", value, limit))
        value = ratio(times, "syncless int4", "bare loop int4", batch)
        found.append(Bound(f"against a bare loop, batch {batch}", value, 0.9))
    for batch, limit in ((1, 0.15), (32, 0.4), (64, 0.7)):
        found.append(Bound(f"host ms a step, batch {batch}", host[batch], limit, at_least=False))
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report for the README."""
    speeds = [f"| {s['contender']} | {s['batch']} | {s['tokens_per_s']:.1f} |" for s in report["speeds"]]
    claims = [
        f"| {b['what']} | {b['value']:.2f} | {'>=' if b['at_least'] else '<='} {b['limit']} | "
        f"{'yes' if b['met'] else 'NO'} |"
        for b in report["bounds"]
    ]
    ver = report["versions"]
    where = f"{report['machine']['cpu']}, {report['threads']} threads, {report['date']}"
    how = f"greedy, {report['tokens']} tokens, median of {report['repeats']} repeats"
    what = f"torch {ver['torch']}, transformers {ver['transformers']}, SmolLM2-135M-Instruct, {how}"
    table = ["| contender | batch | tokens/s |", "|---|---|---|", *speeds]
    steps = ", ".join(f"{ms:.2f} at batch {b}" for b, ms in report["fake_model_step_ms"].items())
    whole = f"Whole decode step with a model that costs nothing, tensor operations included, ms: {steps}."
    checks = ["| figure | measured | bound | met |", "|---|---|---|---|", *claims]
    return "\n".join([where, what, "", *table, "", *checks, "", whole])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, in one process."""
    torch.set_num_threads(arguments.threads)
    threads = f"threads={arguments.threads}"
    gguf = str(embedded_file())
    ours = Syncless(threads)
    prompts = prompts_of(ours.llm, 8)
    contenders: list[Contender] = [ours, BareLoop(threads), Transformers(gguf, ours.llm.tokenizer.eos_ids[0])]
    if importlib.util.find_spec("llama_cpp") is not None:
        contenders.append(LlamaCpp(gguf, arguments.threads))
    times = take_turns(contenders, prompts, arguments.tokens, arguments.repeats)
    fake = {batch: fake_step_ms(batch) for batch in (1, 32, 64)}
    host = {batch: own for batch, (own, _) in fake.items()}
    speeds = [
        {
            "contender": name,
            "batch": batch,
            "tokens_per_s": batch * arguments.tokens / statistics.median(seconds),
        }
        for (name, batch), seconds in times.items()
    ]
    extra = {"transformers": importlib.import_module("transformers").__version__}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "threads": arguments.threads,
        "git": git_state(PACKAGE_ROOT),
        "versions": {**versions(), **extra},
        "tokens": arguments.tokens,
        "repeats": arguments.repeats,
        "speeds": speeds,
        "host_ms_per_step": host,
        "fake_model_step_ms": {batch: whole for batch, (_, whole) in fake.items()},
        "bounds": [{**vars(bound), "met": bound.met} for bound in bounds(times, host)],
        "seconds": {f"{name}, batch {batch}": seconds for (name, batch), seconds in times.items()},
    }


def publish(report: dict[str, Any], text: str, path: Path | None) -> int:
    """Print the text, write the report where asked for; exit code 1 when a bound is not met."""
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(text)
    return 0 if all(bound["met"] for bound in report["bounds"]) else 1


def main() -> int:
    """Markdown on stdout, JSON where asked for; exit code 1 when a bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a prompt")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the report there too")
    arguments = parser.parse_args()
    report = measure(arguments)
    return publish(report, markdown(report), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
