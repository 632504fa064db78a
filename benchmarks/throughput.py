"""`python -m benchmarks.throughput [OVERRIDES]`: a seeded mix of requests, all queued at once.

Reported as a share of the two-term floor of the steps that the engine ran, with the time in which the device
was idle. Knows nothing of scheduling.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks import floors, tables
from benchmarks.ceilings import Ceilings
from benchmarks.decode import ceiling_section
from benchmarks.stepping import prompts_of
from engine import LLM, SamplingParams
from engine.metrics import difference, rates


def mix(vocab: int, count: int, prompt: int, answer: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of 32..prompt tokens and answers of 32..answer, lengths drawn evenly with a fixed seed."""
    draw = random.Random(20)
    lengths = [(draw.randint(32, prompt), draw.randint(32, answer)) for _ in range(count)]
    prompts = [prompts_of(vocab, 1, size, seed=number)[0] for number, (size, _) in enumerate(lengths)]
    return prompts, [SamplingParams(max_tokens=size, ignore_eos=True) for _, size in lengths]


def floor(llm: LLM, found: Ceilings, counts: dict[str, int | float], mean_context: float) -> float:
    """Seconds that the run's steps need at least: weights a step or flops, and what decoding reads of KV."""
    steps = counts["decode_steps"] + counts["extend_steps"]
    weights = floors.matrix_weights(llm.shape) * floors.SIZES[llm.dtype] * steps / found.bandwidth
    tokens = counts["prompt_tokens"] + counts["decode_tokens"]
    flops = 2.0 * floors.matrix_weights(llm.shape) * tokens / found.flops
    kv = floors.kv_bytes(llm.shape, llm.dtype, int(counts["decode_rows"] * mean_context)) / found.bandwidth
    return max(weights, flops) + kv


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--requests", type=int, default=512)
    made.add_argument("--longest-prompt", type=int, default=1024)
    made.add_argument("--longest-answer", type=int, default=512)
    made.add_argument("--repeats", type=int, default=2)
    given = made.parse_args(arguments)
    with LLM(*given.overrides, "cache=none") as llm:
        prompts, params = mix(
            llm.shape.vocab_size, given.requests, given.longest_prompt, given.longest_answer
        )
        found, first = ceiling_section(llm.device)
        runs = []
        for number in range(given.repeats + 1):  # the first one warms up
            tables.say(f"run {number}")
            before, start = llm.metrics.snapshot(), time.perf_counter()
            llm.generate(prompts, params)
            runs.append((time.perf_counter() - start, difference(before, llm.metrics.snapshot())))
        rows = [_row(llm, seconds, counts, found, prompts, params) for seconds, counts in runs[1:]]
        device = llm.device
    title = f"{given.requests} requests, {' '.join(given.overrides)}"
    best = statistics.median(row["total tokens/s"] for row in rows)
    note = f"Median of all runs: {best:,.0f} tokens/s, prompts and answers together."
    tables.publish(tables.heading(device), [first, tables.Section(title, rows, note)], given.json)
    return 0


def _row(
    llm: LLM,
    seconds: float,
    counts: dict[str, int | float],
    found: Ceilings | None,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
) -> tables.Row:
    asked = sum(len(prompt) for prompt in prompts)
    context = statistics.mean(len(p) + (q.max_tokens or 0) / 2 for p, q in zip(prompts, params, strict=True))
    derived = rates(counts)
    occupancy = derived.get("forward_occupancy")
    row: tables.Row = {
        "seconds": seconds,
        "total tokens/s": (asked + counts["emitted_tokens"]) / seconds,
        "output tokens/s": counts["emitted_tokens"] / seconds,
        "decode steps": counts["decode_steps"],
        "prefill steps": counts["extend_steps"],
        "requests a decode step": derived["decode_batch"],
        "host waits a step": derived["host_waits_per_step"],
        "idle share": None if occupancy is None else 1.0 - occupancy,
    }
    if found is not None:
        row["share of the floor"] = floor(llm, found, counts, context) / seconds
    return row


if __name__ == "__main__":
    sys.exit(main())
