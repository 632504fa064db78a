"""`python -m benchmarks.prefill [OVERRIDES]`: time to the first token by prompt length, prefill graphs on and
off, against the floor of the products and of causal attention.

Engines take turns at every length. Knows nothing of how graphs work.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from benchmarks import floors, tables
from benchmarks.decode import ceiling_section
from benchmarks.stepping import first_token
from engine import LLM

LENGTHS = [128, 129, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192]


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--lengths", type=tables.numbers, default=LENGTHS)
    made.add_argument("--modes", nargs="+", default=["none", "piecewise", "full"], help="options of pcg")
    made.add_argument("--repeats", type=int, default=7)
    given = made.parse_args(arguments)
    longest = max(given.lengths)
    common = [
        *given.overrides,
        "cache=none",
        "scheduler.max_running=1",
        f"cache.max_context={longest + 64}",
        "sampling.max_tokens=1",
        f"scheduler.chunk_tokens={longest}",
    ]
    engines = {mode: LLM(*common, f"pcg={mode}") for mode in given.modes}
    device = next(iter(engines.values())).device
    found, first = ceiling_section(device)
    rows = []
    for length in given.lengths:
        tables.say(f"prefill, {length} tokens")
        times = {mode: first_token(llm, length, given.repeats) for mode, llm in engines.items()}
        medians = {mode: statistics.median(own) for mode, own in times.items()}
        row: tables.Row = {"tokens": length}
        row |= {f"pcg={mode}, ms": 1e3 * seconds for mode, seconds in medians.items()}
        base = medians[given.modes[0]]
        row |= {f"{mode} over {given.modes[0]}": base / medians[mode] for mode in given.modes[1:]}
        if found is not None:
            llm = engines[given.modes[0]]
            least = floors.prefill_floor(llm.shape, llm.dtype, found, length)
            row["best, share of the floor"] = least / min(medians.values())
        rows.append(row)
    title = f"Time to the first token, {' '.join(given.overrides)}"
    tables.publish(tables.heading(device), [first, tables.Section(title, rows)], given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
