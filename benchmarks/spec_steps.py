"""`python -m benchmarks.spec_steps [OVERRIDES]`: what a step with drafts costs, in plain decode steps.

Acceptance is forced, so that the figure is the step's and not the text's. Knows neither algorithm.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import tables
from benchmarks.decode import side_by_side
from benchmarks.stepping import decode
from engine import LLM

FORCED = 2.0  # tokens a step: half of what is drafted is thrown away, as in real text
KINDS = {
    "EAGLE3, 1 draft": ["spec=eagle3", "spec.load=dummy", "spec.num_steps=1", "spec.num_draft_tokens=2"],
    "EAGLE3, 2 drafts": ["spec=eagle3", "spec.load=dummy", "spec.num_steps=2", "spec.num_draft_tokens=3"],
    "EAGLE3, 4 drafts": ["spec=eagle3", "spec.load=dummy", "spec.num_steps=4", "spec.num_draft_tokens=5"],
    "EAGLE3, tree of 16": [
        "spec=eagle3",
        "spec.load=dummy",
        "spec.num_steps=4",
        "spec.topk=4",
        "spec.num_draft_tokens=16",
    ],
    "n-gram, 4 drafts": ["spec=ngram", "spec.drafts=4"],
    "n-gram, 7 drafts": ["spec=ngram", "spec.drafts=7"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Markdown on stdout, JSON where asked for."""
    made = tables.parser(__doc__)
    made.add_argument("--batches", type=tables.numbers, default=[1, 8, 32])
    made.add_argument("--context", type=int, default=256)
    made.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="KIND")
    given = made.parse_args(arguments)
    common = tables.preferring(given.overrides, *side_by_side(max(given.batches)))
    tables.say("plain decoding")
    with LLM(*common, "spec=none") as llm:
        device = llm.device
        plain = {batch: decode(llm, batch, given.context).seconds for batch in given.batches}
    rows: list[tables.Row] = [{"drafts": "none", **{_ms(b): 1e3 * plain[b] for b in given.batches}}]
    for kind in given.kinds:
        tables.say(kind)
        forced = ["spec.adaptive=false", f"spec.simulate_accept_length={FORCED}"]
        with LLM(*common, *KINDS[kind], *forced) as llm:
            took = {batch: decode(llm, batch, given.context) for batch in given.batches}
        row: tables.Row = {"drafts": kind}
        row |= {_ms(batch): 1e3 * own.seconds for batch, own in took.items()}
        row |= {f"plain steps, batch {batch}": own.seconds / plain[batch] for batch, own in took.items()}
        row |= {"tokens a step": took[given.batches[0]].tokens / given.batches[0]}
        rows.append(row)
    note = f"Every request is made to accept {FORCED} tokens a step on average (simulated)."
    title = f"Steps with drafts, {' '.join(given.overrides)}"
    tables.publish(tables.heading(device), [tables.Section(title, rows, note)], given.json)
    return 0


def _ms(batch: int) -> str:
    return f"ms, batch {batch}"


if __name__ == "__main__":
    sys.exit(main())
