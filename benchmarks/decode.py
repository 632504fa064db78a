"""`python -m benchmarks.decode [OVERRIDES]`: a decode step by batch size, against the floor of its bytes.

Ceilings are measured in the same run. Further choices of one group are compared with --against
(`--against overlap=none`): both engines take turns at every batch size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks import ceilings, floors, tables
from benchmarks.power import Meter, Power
from benchmarks.stepping import Decoded, decode
from engine import LLM
from engine.models.source import compute_dtype

BATCHES = [1, 8, 32, 64, 128, 256]
SLACK = 128  # tokens that a request may have beyond the average context, at its end


def rows(llm: LLM, batches: Sequence[int], context: int, found: ceilings.Ceilings | None) -> list[tables.Row]:
    """One a batch size."""
    made = []
    for batch in batches:
        tables.say(f"decode, batch {batch}")
        took, drawn = metered(llm, batch, context)
        made.append({**row(llm, batch, context, took, found), **power("", drawn)})
    return made


def metered(llm: LLM, batch: int, context: int) -> tuple[Decoded, Power | None]:
    """A decode step, and what the card drew in another measurement of it: asking takes time of the host, and
    perhaps of the card. Nobody tells of a CPU."""
    import torch

    if not llm.device.startswith("cuda"):
        return decode(llm, batch, context), None
    took = decode(llm, batch, context)
    with Meter(torch.device(llm.device)) as meter:
        decode(llm, batch, context)
    return took, meter.found


def power(what: str, drawn: Power | None) -> tables.Row:
    """Watts and megahertz in words; what: was done meanwhile."""
    return {} if drawn is None else {f"{what}W": drawn.watts, f"{what}MHz": drawn.megahertz}


def row(llm: LLM, batch: int, context: int, took: Decoded, found: ceilings.Ceilings | None) -> tables.Row:
    """Figures of one batch size; shares of the floors where the ceilings are known."""
    return {
        "batch": batch,
        "ms a step": 1e3 * took.seconds,
        "tokens/s": took.rate,
        "tokens a step and request": took.tokens / batch,
        "host waits a step": took.waits,
        "back-pressure a step": took.pressed,
        "forward occupancy": took.occupancy,
        "outside a graph": took.eager,
        "kernels compiled": took.compiled,
        "slowest/fastest window": took.spread,
        **({} if found is None else _shares(llm, batch, context, took.seconds, found)),
    }


def _shares(llm: LLM, batch: int, context: int, seconds: float, found: ceilings.Ceilings) -> tables.Row:
    """Of a step, what its bytes take, and what the larger of weights and products takes with the keys."""
    shape, dtype = llm.shape, compute_dtype(llm.dtype)
    passed = batch * llm.spec.width, batch * context
    lasting = replace(found, flops=found.sustained)
    return {
        "share of the byte floor": floors.byte_floor(shape, dtype, found, batch, context) / seconds,
        "of both terms": floors.two_term_floor(shape, dtype, found, *passed) / seconds,
        "of both, sustained rate": floors.two_term_floor(shape, dtype, lasting, *passed) / seconds,
    }


def ceiling_section(device: str) -> tuple[ceilings.Ceilings | None, tables.Section]:
    """What the card can do; nothing is known of a CPU."""
    import torch

    if not device.startswith("cuda"):
        return None, tables.Section("Ceilings", note="Not measured: they are those of a GPU.")
    found = ceilings.measure(torch.device(device))
    torch.cuda.empty_cache()  # gigabytes that only this stream could use again
    return found, tables.Section(
        "Ceilings",
        [
            {
                "read, TB/s": found.bandwidth / 1e12,
                "bf16 product, TFLOP/s": found.flops / 1e12,
                "sustained": found.sustained / 1e12,
                "graph node, us": 1e6 * found.node,
                "graph launch, us of the host": 1e6 * found.launch,
                "launch and wait, us": 1e6 * found.wait,
                **power("reading, ", found.reading),
                **power("products, ", found.multiplying),
                **({} if found.reading is None else {"limit, W": found.reading.limit}),
            }
        ],
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    made = tables.parser(__doc__)
    made.add_argument("--batches", type=tables.numbers, default=BATCHES)
    made.add_argument("--context", type=int, default=256, help="tokens of a request, on average")
    made.add_argument("--against", action="append", default=[], help="an override of a second engine")
    return made.parse_args(arguments)


def side_by_side(batch: int) -> tuple[str, ...]:
    """Overrides with which `batch` requests run at once, all of them prefilled before one decodes."""
    return "cache=none", f"scheduler.max_running={batch}", f"scheduler.prefill_streak={1 << 20}"


def compare(
    one: Sequence[str], other: Sequence[str], batches: Sequence[int], context: int
) -> tuple[str, list[tables.Row]]:
    """(device, rows) of two engines side by side: milliseconds of each, how much faster the first is."""
    made = []
    with LLM(*one) as first, LLM(*other) as second:
        device = first.device
        for batch in batches:
            tables.say(f"both, batch {batch}")
            took = [decode(llm, batch, context) for llm in (first, second, first, second)]
            mine, theirs = (min(pair, key=lambda d: d.seconds) for pair in (took[::2], took[1::2]))
            made.append(
                {
                    "batch": batch,
                    "ms a step": 1e3 * mine.seconds,
                    "against, ms": 1e3 * theirs.seconds,
                    "times as fast": mine.rate / theirs.rate,
                    "host waits a step": mine.waits,
                    "forward occupancy": mine.occupancy,
                }
            )
    return device, made


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    given = parse(arguments)
    overrides = tables.preferring(given.overrides, *side_by_side(max(given.batches)))
    name = " ".join(given.overrides)
    if given.against:
        # Two engines share a card: neither may take all its memory for keys and values.
        pool = f"cache.tokens={max(given.batches) * 2 * (given.context + SLACK)}"
        overrides = tables.preferring(overrides, pool)
        other = tables.preferring(given.against, *overrides)
        device, found_rows = compare(overrides, other, given.batches, given.context)
        sections = [tables.Section(f"Decode, {name}, against {' '.join(given.against)}", found_rows)]
    else:
        with LLM(*overrides) as llm:
            device = llm.device
            found, first = ceiling_section(device)
            sections = [
                first,
                tables.Section(f"Decode, {name}", rows(llm, given.batches, given.context, found)),
            ]
    tables.publish(tables.heading(device), sections, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
