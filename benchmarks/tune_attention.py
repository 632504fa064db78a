"""`python -m benchmarks.tune_attention`: which tiles and splits make attention fastest on this GPU.

Sweeps decode and verify over batch, context and width, and prefill over its length, beside torch's SDPA in
the same run. Prints what was achieved and what won; the table in kernels/attention_tiles.py is kept by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks import tables
from benchmarks.attention_timing import Bench, Heads, Pass, with_splits
from benchmarks.ceilings import Ceilings, measure
from engine.batch import LayerKV
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import Tile, Tiles, tiles_for

Run = Callable[[Tensor, LayerKV], Tensor]
HEADS = {"llama-3.1-8b": Heads(32, 8, 128), "smollm2-135m": Heads(9, 3, 64)}
DECODE = ((32, 4, 4), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3), (128, 4, 2), (128, 8, 3))
EXTEND = (
    (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (128, 128, 8, 2), (128, 32, 8, 4), (64, 64, 4, 3),
    (64, 128, 4, 2),
)  # fmt: skip
SPLITS = (1, 2, 4, 8, 16, 32)
TOLERANCE = 2e-2  # between bf16 results


def decode_row(what: Pass, ceilings: Ceilings, device: torch.device, early: bool) -> tables.Row:
    """The table's choice, the best tile, the best number of splits with it, and SDPA."""
    bench = Bench(what, device, _cache(device))
    tiles = tiles_for(*_card(device), what.heads.dim)
    rows = what.new * (what.heads.query // what.heads.kv)
    plan = _plan(device, tiles)
    chosen = replace(tiles.decode.at_most(rows), dependent=early)
    every = {chosen} | {
        Tile(chosen.rows, keys, warps=warps, stages=stages, dependent=early) for keys, warps, stages in DECODE
    }
    expected = bench.once(bench.decode(chosen, plan))
    times = {tile: timed(bench, bench.decode(tile, plan), expected) for tile in every}
    best = min(times, key=lambda tile: times[tile])
    by_splits = {
        one.fixed: timed(bench, bench.decode(best, one), expected) for one in with_splits(plan, SPLITS)
    }
    fastest = min(by_splits, key=lambda count: by_splits[count])
    return {
        "batch": what.requests,
        "context": what.before + what.new,
        "width": what.new,
        "now, us": 1e6 * times[chosen],
        "now, GB/s": what.bytes / times[chosen] / 1e9,
        "of the bandwidth": what.bytes / times[chosen] / ceilings.bandwidth,
        "best, us": 1e6 * by_splits[fastest],
        "best tile": text_of(best),
        "best splits": fastest or "automatic",
        "SDPA, us": 1e6 * timed(bench, bench.library(), expected),
    }


def extend_row(what: Pass, ceilings: Ceilings, device: torch.device, early: bool) -> tables.Row:
    """The table's choice, the best tile, and SDPA."""
    bench = Bench(what, device, _cache(device))
    rows = what.new * (what.heads.query // what.heads.kv)
    tiles = tiles_for(*_card(device), what.heads.dim)
    plan, chosen = _plan(device, tiles), replace(tiles.extending(rows), dependent=early)
    every = {chosen} | {
        Tile(rows_, keys, warps=warps, stages=stages, dependent=early)
        for rows_, keys, warps, stages in EXTEND
    }
    expected = bench.once(bench.extend(chosen, plan))
    times = {tile: timed(bench, bench.extend(tile, plan), expected) for tile in every}
    best = min(times, key=lambda tile: times[tile])
    return {
        "tokens": what.new,
        "before": what.before,
        "now, us": 1e6 * times[chosen],
        "now, TFLOP/s": what.flops / times[chosen] / 1e12,
        "of the matrix rate": what.flops / times[chosen] / ceilings.flops,
        "best, us": 1e6 * times[best],
        "best tile": text_of(best),
        "SDPA, us": 1e6 * timed(bench, bench.library(), expected),
    }


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


def text_of(tile: Tile) -> str:
    """A tile on one line of a table."""
    return f"{tile.rows}x{tile.keys}, {tile.warps} warps, {tile.stages} stages"


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


def _card(device: torch.device) -> tuple[int, int]:
    """What `tiles_for` asks: generation, bytes of an element."""
    return torch.cuda.get_device_capability(device)[0], 2


def _plan(device: torch.device, tiles: Tiles) -> SplitPlan:
    return SplitPlan(4 * torch.cuda.get_device_properties(device).multi_processor_count, 0, tiles.decode.rows)


def _cache(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)


def _parser() -> argparse.ArgumentParser:
    made = tables.parser(__doc__)
    made.add_argument("--like", choices=tuple(HEADS), default="llama-3.1-8b", help="whose heads")
    made.add_argument("--batches", type=tables.numbers, default=[1, 8, 32, 64, 128, 256])
    made.add_argument("--contexts", type=tables.numbers, default=[256, 1024, 4096, 8192])
    made.add_argument("--widths", type=tables.numbers, default=[1, 5])
    made.add_argument("--lengths", type=tables.numbers, default=[128, 256, 512, 1024, 2048, 4096, 8192])
    made.add_argument("--prefix", type=int, default=4096, help="of a second round of prompts; 0 for none")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout."""
    given = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("nothing can be measured: no CUDA device", file=sys.stderr)
        return 1
    device, heads = torch.device("cuda"), HEADS[given.like]
    early = torch.cuda.get_device_capability(device)[0] >= 9
    with torch.inference_mode():
        ceilings = measure(device)
        decoding, extending = tables.Section("Decode and verify"), tables.Section("Prefill, one prompt")
        for section, row, passes in (
            (decoding, decode_row, decodes(heads, given.batches, given.contexts, given.widths)),
            (extending, extend_row, extends(heads, given.lengths, given.prefix)),
        ):
            for number, what in enumerate(passes):
                tables.say(f"{section.title}: {number + 1}/{len(passes)} {what}")
                section.rows.append(row(what, ceilings, device, early))
                torch.cuda.empty_cache()
    decoding.note = "SDPA reads keys that lie side by side; a launch of ours is the tiles and their merge."
    ceiling = (
        f"read bandwidth {ceilings.bandwidth / 1e12:.3g} TB/s, products {ceilings.flops / 1e12:.3g} TFLOP/s"
    )
    extending.note = f"Ceilings of this run: {ceiling}."
    tables.publish(tables.heading("cuda"), [decoding, extending], given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
