"""`python -m benchmarks.speculation [OVERRIDES]`: the figures of drafting in docs/results.md, as ratios.

Speed-ups over plain decoding, accept lengths, and what a step costs by its width. Knows what is claimed; how
it is measured is in benchmarks/drafting.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cpu import Bound, publish
from benchmarks.drafting import PLAIN, Contender, Racing, acceptance, cost_by_width, encoded, measure_sets
from benchmarks.prompt_sets import PromptSet, prompt_sets
from benchmarks.tables import preferring
from engine import LLM
from engine.code_state import PACKAGE_ROOT, git_state
from engine.errors import UserError
from engine.provenance import device_facts, machine, versions

EAGLE3, NGRAM = "eagle3", "ngram"
CONTENDERS = (
    Contender(PLAIN, ("spec=none",)),
    Contender(EAGLE3, ("spec=eagle3",)),
    Contender(NGRAM, ("spec=ngram",)),
)
ACCEPT = (  # fixed drafts, whose accept length the draft's card is about
    Contender("chain of 4", ("spec=eagle3", "spec.adaptive=false")),
    Contender(
        "tree of 16", ("spec=eagle3", "spec.adaptive=false", "spec.topk=4", "spec.num_draft_tokens=16")
    ),
    Contender("n-gram", ("spec=ngram", "spec.adaptive=false")),
)
FASTER = {EAGLE3: ("gsm8k", "alpaca"), NGRAM: ("summarise",)}  # at least 1.3 times plain decoding there
ACCEPTED = {"alpaca": 2.6, "gsm8k": 2.8, "humaneval": 2.5, "summarise": 2.5}  # chain of 4
CHAIN = ACCEPT[0].name


def _count(text: str) -> int:
    """An argument from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def engine(contender: Contender, dtype: str, arguments: argparse.Namespace, rows: int) -> LLM | None:
    """None, with a line on stderr, where there is no draft for the model."""
    usual = (f"model={arguments.model}", f"threads={arguments.threads}", "cache=none")
    common = (*preferring(arguments.overrides, *usual), f"model.dtype={dtype}")
    draft: tuple[str, ...] = ()
    if arguments.draft is not None and "spec=eagle3" in contender.overrides:
        draft = (f"spec.draft={arguments.draft}",)
    try:
        return LLM(*common, f"scheduler.max_running={rows}", *contender.overrides, *draft)
    except UserError as error:
        print(f"{contender.name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def speeds(dtype: str, sets: Sequence[PromptSet], arguments: argparse.Namespace) -> dict[str, Any]:
    """set -> contender -> figures, and the cost table of the adaptive engine."""
    made = {c.name: engine(c, dtype, arguments, arguments.batch) for c in CONTENDERS}
    engines = {name: llm for name, llm in made.items() if llm is not None}
    how = Racing(arguments.batch, arguments.tokens, arguments.repeats, arguments.temperature)
    found = measure_sets(engines, sets, arguments.raced, how)
    costs = {name: cost_by_width(llm) for name, llm in engines.items() if llm.step_costs is not None}
    for llm in engines.values():
        llm.close()
    return {"sets": found, "cost_in_plain_steps": costs}


def accept_lengths(dtype: str, sets: Sequence[PromptSet], arguments: argparse.Namespace) -> dict[str, Any]:
    """contender -> set -> figures."""
    found: dict[str, Any] = {}
    for contender in ACCEPT:
        llm = engine(contender, dtype, arguments, 8)
        if llm is None:
            continue
        with llm:
            found[contender.name] = {
                own.name: acceptance(
                    llm, encoded(llm, own.texts[: arguments.prompts]), arguments.accept_tokens
                )
                for own in sets
            }
        print(f"{contender.name}: counted", file=sys.stderr)
    return found


def bounds(report: dict[str, Any]) -> list[Bound]:
    """The claims of the project about drafting."""
    found = []
    for dtype, own in report["speed"].items():
        for name, contenders in own["sets"].items():
            for spec in (EAGLE3, NGRAM):
                if spec in contenders:
                    limit = 1.3 if name in FASTER[spec] and not report["temperature"] else 0.97
                    what = f"{spec} against plain decoding, {name}, {dtype}"
                    found.append(Bound(what, contenders[spec]["speedup"], limit))
    for name, limit in ACCEPTED.items():
        figures = report["acceptance"].get(CHAIN, {}).get(name)
        if figures is not None:
            found.append(Bound(f"accept length, {CHAIN}, {name}", figures["accept_length"], limit))
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report for the README."""
    where = f"{report['device']['device_name']}, {report['threads']} threads, {report['date']}"
    drawn = f"temperature {report['temperature']}" if report["temperature"] else "greedy"
    how = f"{drawn}, chat template, ends honoured, up to {report['tokens']} tokens, batch {report['batch']}"
    what = " ".join([f"model={report['model']}", *report["overrides"]])
    lines = [where, f"torch {report['versions']['torch']}, {what}, {how}", ""]
    lines += [
        "| dtype | prompts | decoding | tokens/s | over plain | with prefill |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {dtype} | {name} | {contender} | {row['tokens_per_s']:.1f} | {row['speedup']:.2f}x | "
        f"{row['speedup_with_prefill']:.2f}x |"
        for dtype, own in report["speed"].items()
        for name, contenders in own["sets"].items()
        for contender, row in contenders.items()
    ]
    lines += ["", "| drafts | prompts | accept length | accepted by depth |", "|---|---|---|---|"]
    lines += [
        f"| {contender} | {name} | {row['accept_length']:.2f} | {_rates(row['acceptance_per_position'])} |"
        for contender, own in report["acceptance"].items()
        for name, row in own.items()
    ]
    lines += ["", *_cost_lines(report)]
    lines += ["", "| figure | measured | bound | met |", "|---|---|---|---|"]
    lines += [
        f"| {b['what']} | {b['value']:.2f} | >= {b['limit']} | {'yes' if b['met'] else 'NO'} |"
        for b in report["bounds"]
    ]
    return "\n".join(lines)


def _rates(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _cost_lines(report: dict[str, Any]) -> list[str]:
    """A step in plain decode steps, at the smallest batch that was measured."""
    lines = ["| dtype | drafts | cost of a step by width, in plain steps |", "|---|---|---|"]
    for dtype, own in report["speed"].items():
        for name, by_batch in own["cost_in_plain_steps"].items():
            row = ", ".join(
                f"{width}: {cost:.2f}" for width, cost in min(by_batch.items(), key=_batch)[1].items()
            )
            lines.append(f"| {dtype} | {name} | {row} |")
    return lines


def _batch(figures: tuple[str, dict[str, float]]) -> int:
    return int(figures[0])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, in one process."""
    torch.set_num_threads(arguments.threads)
    sets = prompt_sets(arguments.data, max(arguments.prompts, arguments.raced))
    report: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "device": device_facts("cuda:0" if "device=cuda" in arguments.overrides else "cpu"),
        "threads": arguments.threads,
        "git": git_state(PACKAGE_ROOT),
        "versions": versions(),
        "model": arguments.model,
        "overrides": arguments.overrides,
        "batch": arguments.batch,
        "tokens": arguments.tokens,
        "temperature": arguments.temperature,
        "accept_tokens": arguments.accept_tokens,
        "repeats": arguments.repeats,
        "prompts": {own.name: len(own.texts) for own in sets},
        "raced": arguments.raced,
        "speed": {dtype: speeds(dtype, sets, arguments) for dtype in arguments.dtypes},
        "acceptance": accept_lengths(arguments.dtypes[0], sets, arguments) if arguments.prompts else {},
    }
    report["bounds"] = [{**vars(bound), "met": bound.met} for bound in bounds(report)]
    return report


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", help="of all engines: device=cuda attention=triton ...")
    parser.add_argument("--data", type=Path, help="folder with alpaca, gsm8k, humaneval, summarise")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft", type=Path, help="an EAGLE3 draft instead of the packaged one")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int4"])
    parser.add_argument(
        "--prompts", type=int, default=80, help="prompts a set whose accept length is counted, 0: none"
    )
    parser.add_argument("--raced", type=_count, default=8, help="prompts a set that are timed")
    parser.add_argument("--batch", type=_count, default=1, help="prompts that are answered side by side")
    parser.add_argument("--tokens", type=_count, default=128, help="most new tokens of a timed answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="of timed answers; 0: greedy")
    parser.add_argument("--accept-tokens", type=_count, default=256, help="most new tokens of a counted one")
    parser.add_argument("--repeats", type=_count, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write the report there too")
    return parser.parse_args(arguments)


def main() -> int:
    """Markdown on stdout, JSON where asked for; exit code 1 when a bound is not met."""
    arguments = parse()
    report = measure(arguments)
    return publish(report, markdown(report), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
