"""`python -m benchmarks.tune_attention`: which tiles and splits make attention fastest on this GPU.

Sweeps decode and verify over batch, context and width, and prefill over its length, beside torch's SDPA in
the same run; `--quick` takes the few that decide most. Prints what was achieved, every variant, and what won
in the words of kernels/attention_tiles.py, whose table is kept by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks import tables
from benchmarks.attention_candidates import Run, decode_ways, extend_tiles, text_of
from benchmarks.attention_timing import Bench, Heads, Pass, with_splits
from benchmarks.ceilings import Ceilings, measure
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import Tiles, tiles_for
from kernels.cuda.available import why_not

HEADS = {"llama-3.1-8b": Heads(32, 8, 128), "smollm2-135m": Heads(9, 3, 64)}
SPLITS = (1, 2, 4, 8, 16, 32)
FINALISTS = 3  # tiles that are tried with all splits
TOLERANCE = 2e-2  # between bf16 results
QUICK = {
    "batches": [1, 8, 64, 256], "contexts": [256], "widths": [1], "lengths": [1024, 8192], "prefix": 0,
}  # fmt: skip
QUICK_VERIFY = ((1, 5), (8, 5))  # batch, width


@dataclass(frozen=True)
class Card:
    """What rows are measured on. early: dependent launch; positions: of a table's row."""

    device: torch.device
    ceilings: Ceilings
    early: bool
    positions: int

    def bench(self, what: Pass) -> Bench:
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        return Bench(what, self.device, int(cache), self.positions)

    def tiles(self, dim: int) -> Tiles:
        tiles = tiles_for(torch.cuda.get_device_capability(self.device)[0], 2, dim)
        return replace(tiles, queued=tiles.streamed is not None and not why_not())

    def plan(self, tiles: Tiles) -> SplitPlan:
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        return SplitPlan(4 * processors, 0, tiles.decode.rows)


def decode_row(what: Pass, card: Card) -> tuple[tables.Row, list[tables.Row]]:
    """The table's choice, the best tile and number of splits, and SDPA; then every variant."""
    bench, tiles = card.bench(what), card.tiles(what.heads.dim)
    plan = card.plan(tiles)
    chosen, ways = decode_ways(bench, plan, tiles, card.early)
    expected = bench.once(bench.library())
    times = {(way, plan): timed(bench, way.run(bench, plan), expected) for way in ways}
    for way, _ in sorted(times, key=lambda key: times[key])[:FINALISTS]:
        for one in with_splits(plan, SPLITS)[1:] if way.tile else []:
            times[way, one] = timed(bench, way.run(bench, one), expected)
    best = min(times, key=lambda key: times[key])
    case: tables.Row = {"batch": what.requests, "context": what.before + what.new, "width": what.new}
    row = {
        **case,
        "now, us": 1e6 * times[chosen, plan],
        "now, TB/s": what.bytes / times[chosen, plan] / 1e12,
        "of the bandwidth": what.bytes / times[chosen, plan] / card.ceilings.bandwidth,
        "now": str(chosen),
        "best, us": 1e6 * times[best],
        "best, TB/s": what.bytes / times[best] / 1e12,
        "best tile": str(best[0]),
        "best splits": best[1].fixed or "automatic",
        "SDPA, us": 1e6 * timed(bench, bench.library(), expected),
    }
    return row, [
        {**case, "tile": str(way), "splits": one.fixed or "automatic", "us": 1e6 * times[way, one],
         "TB/s": what.bytes / times[way, one] / 1e12}
        for way, one in sorted(times, key=lambda key: times[key])
    ]  # fmt: skip


def extend_row(what: Pass, card: Card) -> tuple[tables.Row, list[tables.Row]]:
    """The table's choice, the best tile, and SDPA; then every variant."""
    bench, tiles = card.bench(what), card.tiles(what.heads.dim)
    plan = card.plan(tiles)
    chosen = tiles.extending(what.new * (what.heads.query // what.heads.kv))
    chosen = replace(chosen, dependent=card.early)
    expected = bench.once(bench.library())
    every = dict.fromkeys([chosen, *extend_tiles(card.early)])
    times = {tile: timed(bench, bench.extend(tile, plan), expected) for tile in every}
    best = min(times, key=lambda tile: times[tile])
    case: tables.Row = {"tokens": what.new, "before": what.before}
    row = {
        **case,
        "now, us": 1e6 * times[chosen],
        "now, TFLOP/s": what.flops / times[chosen] / 1e12,
        "of the matrix rate": what.flops / times[chosen] / card.ceilings.flops,
        "best, us": 1e6 * times[best],
        "best, TFLOP/s": what.flops / times[best] / 1e12,
        "best tile": text_of(best),
        "SDPA, us": 1e6 * timed(bench, bench.library(), expected),
    }
    return row, [
        {**case, "tile": text_of(tile), "us": 1e6 * time, "TFLOP/s": what.flops / time / 1e12}
        for tile, time in sorted(times.items(), key=lambda item: item[1])
    ]


def timed(bench: Bench, run: Run, expected: Tensor) -> float:
    """Seconds; infinite for what does not fit the card. What computes something else is an error."""
    try:
        found = bench.once(run)
    except Exception as error:  # Triton has no common error for it
        if "out of resource" not in str(error).lower():
            raise
        return float("inf")
    gap = (found.float() - expected.float()).abs().max().item()
    if gap > TOLERANCE * expected.float().abs().max().item():
        raise RuntimeError(f"{run} is {gap:.3g} off at {bench.what}")
    return bench.seconds(run)


def decodes(
    heads: Heads, batches: Sequence[int], contexts: Sequence[int], widths: Sequence[int]
) -> list[Pass]:
    """Contexts in whole pages, which is how SDPA can read the same pool."""
    return [
        Pass(heads, batch, width, context - width, verify=True)
        for width in widths
        for batch in batches
        for context in contexts
    ]


def extends(heads: Heads, lengths: Sequence[int], prefix: int) -> list[Pass]:
    """One prompt of each length, alone, then behind a prefix."""
    return [
        Pass(heads, 1, length, before, verify=False) for before in sorted({0, prefix}) for length in lengths
    ]


def _parser() -> argparse.ArgumentParser:
    made = tables.parser(__doc__)
    made.add_argument("--like", choices=tuple(HEADS), default="llama-3.1-8b", help="whose heads")
    made.add_argument("--batches", type=tables.numbers, default=[1, 8, 32, 64, 128, 256])
    made.add_argument("--contexts", type=tables.numbers, default=[256, 1024, 4096, 8192])
    made.add_argument("--widths", type=tables.numbers, default=[1, 5])
    made.add_argument("--lengths", type=tables.numbers, default=[128, 256, 512, 1024, 2048, 4096, 8192])
    made.add_argument("--prefix", type=int, default=4096, help="of a second round of prompts; 0 for none")
    made.add_argument("--positions", type=int, default=8192, help="that a row of the page table holds")
    made.add_argument("--quick", action="store_true", help="a few passes instead of all, some two minutes")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout."""
    given = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("nothing can be measured: no CUDA device", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    early = torch.cuda.get_device_capability(device)[0] >= 9
    decoding, extending = passes_of(given)
    with torch.inference_mode():
        card = Card(device, measure(device), early, given.positions)
        sections = [
            *_measured("Decode and verify", decode_row, decoding, card),
            *_measured("Prefill, one prompt", extend_row, extending, card),
        ]
    sections[0].note = "SDPA reads keys that lie side by side. Rates count keys and values once."
    sections[-1].note = (
        f"Ceilings of this run: read bandwidth {card.ceilings.bandwidth / 1e12:.3g} TB/s, "
        f"products {card.ceilings.flops / 1e12:.3g} TFLOP/s."
    )
    tables.publish(tables.heading("cuda"), sections, given.json)
    return 0


def passes_of(given: argparse.Namespace) -> tuple[list[Pass], list[Pass]]:
    """Of decode and of prefill, as asked for."""
    heads = HEADS[given.like]
    asked = argparse.Namespace(**{**vars(given), **QUICK}) if given.quick else given
    decoding = decodes(heads, asked.batches, asked.contexts, asked.widths)
    if given.quick:
        decoding += [decodes(heads, [batch], asked.contexts, [width])[0] for batch, width in QUICK_VERIFY]
    return decoding, extends(heads, asked.lengths, asked.prefix)


def _measured(
    title: str, row: Callable[[Pass, Card], tuple[tables.Row, list[tables.Row]]], passes: Sequence[Pass],
    card: Card,
) -> list[tables.Section]:  # fmt: skip
    """What won, and every variant."""
    won, variants = tables.Section(title), tables.Section(f"{title}: variants")
    for number, what in enumerate(passes):
        tables.say(f"{title}: {number + 1}/{len(passes)} {what}")
        best, every = row(what, card)
        tables.say(" ".join(f"{name}: {tables.shown(value)};" for name, value in best.items()))
        won.rows.append(best)
        variants.rows += every
        torch.cuda.empty_cache()
    return [won, variants]


if __name__ == "__main__":
    sys.exit(main())
