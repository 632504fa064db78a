"""`python -m benchmarks.prefill [OVERRIDES]`: time to the first token by prompt length, prefill graphs on and
off, against the floor of the products and of causal attention.

Engines take turns at every length. Knows nothing of how graphs work.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import floors, tables
from benchmarks.ceilings import Ceilings
from benchmarks.decode import ceiling_section
from benchmarks.stepping import first_tokens
from engine import LLM

LENGTHS = [128, 129, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192]


def engines(modes: Sequence[str], overrides: Sequence[str], longest: int) -> dict[str, LLM]:
    """One for each option of pcg: room for one prompt, computed in a single pass. A graph is made when a
    length first needs it."""
    usual = (
        "cache=none",
        "scheduler.max_running=1",
        f"cache.max_context={longest + 64}",
        f"scheduler.chunk_tokens={longest}",
        "sampling.max_tokens=1",
    )
    found = {}
    for mode in modes:
        tables.say(f"pcg={mode} starts")
        lazy = () if mode == "none" else ("pcg.capture=lazy",)
        found[mode] = LLM(f"pcg={mode}", *tables.preferring(overrides, *usual, *lazy))
    return found


def row(
    llms: Mapping[str, LLM], length: int, times: Sequence[Sequence[float]], found: Ceilings | None
) -> tables.Row:
    """Medians of one length by mode; how many times as fast each is as the first."""
    medians = dict(zip(llms, map(statistics.median, times), strict=True))
    base, *others = medians
    made: tables.Row = {"tokens": length}
    made |= {f"pcg={mode}, ms": 1e3 * seconds for mode, seconds in medians.items()}
    made |= {f"{mode} over {base}": medians[base] / medians[mode] for mode in others}
    made["slowest/fastest run"] = max(max(own) / min(own) for own in times)
    if found is not None:
        least = floors.prefill_floor(llms[base].shape, llms[base].dtype, found, length)
        made["best, share of the floor"] = least / min(medians.values())
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--lengths", type=tables.numbers, default=LENGTHS)
    made.add_argument("--modes", nargs="+", default=["none", "piecewise", "full"], help="options of pcg")
    made.add_argument("--repeats", type=int, default=7)
    given = made.parse_args(arguments)
    llms = engines(given.modes, given.overrides, max(given.lengths))
    device = llms[given.modes[0]].device
    found, first = ceiling_section(device)
    rows = []
    for length in given.lengths:
        tables.say(f"prefill, {length} tokens")
        rows.append(row(llms, length, first_tokens(list(llms.values()), length, given.repeats), found))
    title = f"Time to the first token, {' '.join(given.overrides)}"
    tables.publish(tables.heading(device), [first, tables.Section(title, rows)], given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
