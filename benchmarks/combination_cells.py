"""Combinations of drafting, loop, graphs, prefill graphs and two batches: every option, with what makes it do
its work on small batches.

Knows names and overrides; runs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.conf_tree import conf_tree

GROUPS = ("spec", "overlap", "graph", "pcg", "tbo")
FIXED = "spec.adaptive=false"  # full width in every step, whatever drafts cost
TREE = ("spec.topk=3", "spec.num_steps=3", "spec.num_draft_tokens=9")
# What makes an option do its work on small batches too; several entries are several combinations.
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "spec=eagle3": {"eagle3 chain": (FIXED,), "eagle3 tree": (FIXED, *TREE)},
    "spec=ngram": {"ngram": (FIXED, "spec.drafts=3")},
    "tbo=two_batch": {"two_batch": ("tbo.min_tokens=2",)},
    "pcg=piecewise": {"piecewise": ("pcg.capture=lazy",)},
    "pcg=full": {"full": ("pcg.capture=lazy",)},
}


@dataclass(frozen=True)
class Choice:
    """One option of a group. name: as the table shows it; more: what it needs besides being chosen."""

    name: str
    override: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One combination: a choice for each group."""

    choices: tuple[Choice, ...]

    @property
    def names(self) -> dict[str, str]:
        return {c.override.partition("=")[0]: c.name for c in self.choices}

    def overrides(self, common: Iterable[str]) -> list[str]:
        """Choices first: what belongs to one may then be changed."""
        chosen = [choice.override for choice in self.choices]
        return [*chosen, *(more for c in self.choices for more in c.more), *common]


def choices(group: str, *, dummy_draft: bool = False) -> list[Choice]:
    """All options of a group, `none` first. dummy_draft: for a target that no draft ships for."""
    options = sorted(conf_tree().groups[group], key=lambda option: (option != "none", option))
    found = []
    for option in options:
        override = f"{group}={option}"
        dummy = ("spec.load=dummy",) if dummy_draft and override == "spec=eagle3" else ()
        found += [
            Choice(name, override, more + dummy)
            for name, more in VARIANTS.get(override, {option: ()}).items()
        ]
    return found


def cells(attention: str, *, dummy_draft: bool = False) -> list[Cell]:
    """Every combination over one attention."""
    backend = Choice(attention, f"attention={attention}")
    rest = [choices(group, dummy_draft=dummy_draft) for group in GROUPS]
    return [Cell((backend, *some)) for some in itertools.product(*rest)]


def covering(every: Sequence[Cell]) -> list[Cell]:
    """Few of them, in which each two choices that occur together do so once at least."""
    left = {pair for cell in every for pair in pairs(cell)}
    chosen: list[Cell] = []
    while left:
        best = max(every, key=lambda cell: len(left & pairs(cell)))
        chosen.append(best)
        left -= pairs(best)
    return chosen


def pairs(cell: Cell) -> set[tuple[Choice, ...]]:
    """Each two choices of a combination."""
    return set(itertools.combinations(cell.choices, 2))
