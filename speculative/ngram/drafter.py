"""`spec=ngram`: drafts that continue what was said before, found by longest-suffix match on the device.

Needs no draft model and no host copy of tokens or lengths. Knows nothing of how drafts are judged.
Legend: B requests, W width (drafts + 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.batch import DraftTree
from engine.build import choice, number
from engine.errors import UserError
from engine.lazy import lazy_import
from speculative.base import DraftHost, RelayField, SpecPlan, Speculator
from speculative.ngram.backoff import NgramWidth, widths_up_to
from speculative.ngram.checks import MAX_TREE, config_problems, narrows
from speculative.ngram.signal import FIRST, STREAK
from speculative.views import DraftView, Observed, PrefillSeen
from speculative.width import FixedWidth, StepCosts, WidthPolicy

if TYPE_CHECKING:
    from engine.models.shape import ModelShape
    from speculative.ngram import lookups
else:
    lookups = lazy_import("speculative.ngram.lookups")


class Ngram(Speculator):
    """Prompt lookup decoding (Saxena 2023; LLMA, Yang et al. 2023); a corpus as in REST (He et al. 2023).

    Even a step without drafts looks up what it would have drafted first and compares it with what came: that
    is how the width policy knows, for next to nothing, when drafting pays again.
    """

    reads_cpu_seq_lens = False  # tokens and lengths are read in the device table, sizes come from the bounds

    @dataclass(frozen=True)
    class Config:
        """min_match, max_match: tokens of context that must, and at most will, be compared. drafts: tokens of
        a continuation. branches: continuations, 1 makes a chain. continuation: of several places with the
        longest match the last one, or the most common next token. adaptive: narrow the step where drafts
        fail. corpus: text or .jsonl files to look in as well. corpus_limit: most tokens of them.
        simulate_accept_length: forces this mean."""

        min_match: int = number(1, ge=1, le=32)
        max_match: int = number(8, ge=1, le=32)
        drafts: int = number(7, ge=1, le=MAX_TREE - 1)
        branches: int = number(1, ge=1, le=8)
        continuation: str = choice("recent", ("recent", "frequent"))
        adaptive: bool = True
        corpus: str | tuple[str, ...] | None = None
        corpus_limit: int = number(4_000_000, ge=1, le=100_000_000)
        simulate_accept_length: float | None = number(None, ge=1)

        def corpus_paths(self) -> tuple[str, ...]:
            """The corpus' files, none without one."""
            return (self.corpus,) if isinstance(self.corpus, str) else self.corpus or ()

    def __init__(self, config: Config, host: DraftHost) -> None:
        problems = self.check(config)
        if problems:
            raise UserError("\n".join(problems))
        super().__init__(config, host)
        self._config = config
        self._device = host.device.type
        self._lookup = lookups.make_lookup(config, host)
        self._notes = lookups.make_notes(host)

    @classmethod
    def planned(cls, config: Config) -> SpecPlan:
        width = 1 + config.drafts * config.branches
        return SpecPlan(
            width=width,
            tree=config.branches > 1,
            depth=config.drafts,
            measures=widths_up_to(width) if narrows(config) else (),
            simulated=config.simulate_accept_length,
        )

    @classmethod
    def check(cls, config: Config) -> list[str]:
        """Values that do not fit each other, one sentence each."""
        return config_problems(config)

    @classmethod
    def files(cls, config: Config, target: ModelShape) -> tuple[Path, ...]:
        return tuple(Path(path).expanduser() for path in config.corpus_paths())

    def relay_layout(self) -> tuple[RelayField, ...]:
        return RelayField(FIRST, (), "int32"), RelayField(STREAK, (), "int32")

    def width_policy(self, costs: StepCosts | None) -> WidthPolicy:
        if not narrows(self._config):
            return FixedWidth(self.plan.width)
        return NgramWidth(self.plan.width, self._config.drafts, costs, self._device)

    def propose(self, view: DraftView) -> DraftTree:
        """A step of width 1 drafts nothing, but looks up one token."""
        wanted = max(1, view.width - 1)
        depth = min(self._config.drafts, wanted)
        found = self._lookup.find(view, -(-wanted // depth), depth)
        return self._notes.drafted(view, found)

    def observe(self, view: DraftView, seen: Observed) -> None:
        """Whether the best first draft was right, drafted or not."""
        self._notes.came(view, seen.emitted)

    def prefill(self, view: DraftView, seen: PrefillSeen) -> None:
        """A row that is filled anew has no past."""
        view.relay[STREAK].index_fill_(0, view.rows, 0)  # `[rows] = 0` would wait for the copy of the 0
