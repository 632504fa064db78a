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
from engine.answers import RequestOutput
from engine.metrics import difference, rates

Counts = dict[str, int | float]


def mix(vocab: int, count: int, prompt: int, answer: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of 32..prompt tokens and answers of 32..answer, lengths drawn evenly with a fixed seed."""
    draw = random.Random(20)
    lengths = [(draw.randint(32, prompt), draw.randint(32, answer)) for _ in range(count)]
    prompts = [prompts_of(vocab, 1, size, seed=number)[0] for number, (size, _) in enumerate(lengths)]
    return prompts, [SamplingParams(max_tokens=size, ignore_eos=True) for _, size in lengths]


def floor(llm: LLM, found: Ceilings, counts: Counts, mean_context: float) -> float:
    """Seconds that the steps of a run need at least: of prefill steps and of decode steps the larger of all
    their reads of the weights and all their products, and what decoding reads of KV."""
    weights = floors.matrix_weights(llm.shape)
    read = weights * floors.SIZES[llm.dtype] / found.bandwidth
    product = 2.0 * weights / found.flops
    prefill = max(counts["extend_steps"] * read, counts["prompt_tokens"] * product)
    decode = max(counts["decode_steps"] * read, counts["decode_rows"] * product)
    kv = floors.kv_bytes(llm.shape, llm.dtype, int(counts["decode_rows"] * mean_context)) / found.bandwidth
    return prefill + decode + kv


def timed(llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> tuple[float, Counts]:
    """(seconds, what was counted) of a run, with a word at each quarter of the requests."""
    ended = 0

    def tell(_: RequestOutput) -> None:
        nonlocal ended
        ended += 1
        if 4 * ended // len(prompts) > 4 * (ended - 1) // len(prompts):
            tables.say(f"{ended} of {len(prompts)} requests have ended")

    before, start = llm.metrics.snapshot(), time.perf_counter()
    llm.generate(prompts, params, on_finish=tell)
    return time.perf_counter() - start, difference(before, llm.metrics.snapshot())


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--requests", type=int, default=512)
    made.add_argument("--longest-prompt", type=int, default=1024)
    made.add_argument("--longest-answer", type=int, default=512)
    made.add_argument("--repeats", type=int, default=2)
    given = made.parse_args(arguments)
    # All at once, in large passes, and nobody decodes while prompts are left: what a batch job wants.
    usual = [f"scheduler.max_running={given.requests}", f"scheduler.prefill_streak={1 << 20}"]
    usual += ["cache=none", "scheduler.chunk_tokens=8192"]
    with LLM(*tables.preferring(given.overrides, *usual)) as llm:
        prompts, params = mix(
            llm.shape.vocab_size, given.requests, given.longest_prompt, given.longest_answer
        )
        found, first = ceiling_section(llm.device)
        runs = []
        for number in range(given.repeats + 1):  # the first one warms up
            tables.say(f"run {number}" if number else "warm-up")
            runs.append(timed(llm, prompts, params))
        rows = [_row(llm, seconds, counts, found, prompts, params) for seconds, counts in runs[1:]]
        device = llm.device
    title = f"{given.requests} requests, {' '.join(given.overrides)}"
    median = statistics.median(row["total tokens/s"] for row in rows)
    note = f"Median of all runs: {median:,.0f} tokens/s, prompts and answers together."
    tables.publish(tables.heading(device), [first, tables.Section(title, rows, note)], given.json)
    return 0


def _row(
    llm: LLM,
    seconds: float,
    counts: Counts,
    found: Ceilings | None,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
) -> tables.Row:
    asked = sum(len(prompt) for prompt in prompts)
    answers = [size.max_tokens or 0 for size in params]
    # A request of length a decodes a - 1 times: long answers weigh more in what decoding reads.
    read = sum(max(0, a - 1) * (len(p) + a / 2) for p, a in zip(prompts, answers, strict=True))
    context = read / max(1, sum(max(0, a - 1) for a in answers))
    derived = rates(counts)
    occupancy = derived["forward_occupancy"]
    row: tables.Row = {
        "seconds": seconds,
        "total tokens/s": (asked + counts["emitted_tokens"]) / seconds,
        "output tokens/s": counts["emitted_tokens"] / seconds,
        "decode steps": counts["decode_steps"],
        "prefill steps": counts["extend_steps"],
        "requests a decode step": derived["decode_batch"],
        "host ms a step": derived["host_ms_per_step"],
        "host waits a step": derived["host_waits_per_step"],
        "idle share": None if occupancy is None else 1.0 - occupancy,
        "outside a graph": derived["eager_decode_share"],
        "retractions": counts["retractions"],
    }
    if found is not None:
        row["share of the floor"] = floor(llm, found, counts, context) / seconds
    return row


if __name__ == "__main__":
    sys.exit(main())
