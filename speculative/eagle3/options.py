"""What the numbers of `spec=eagle3` ask of the engine, and which do not go together. Free of torch."""

from __future__ import annotations

from typing import Protocol

from speculative.base import SpecPlan

REMEMBERED = 64  # positions whose entries may be put off while nobody drafts


class Options(Protocol):
    """The values of Eagle3.Config that are read here."""

    @property
    def draft(self) -> str | None: ...
    @property
    def load(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def topk(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int | None: ...
    @property
    def acceptance(self) -> str: ...
    @property
    def adaptive(self) -> bool: ...
    @property
    def simulate_accept_length(self) -> float | None: ...


def plan(config: Options) -> SpecPlan:
    """A chain drafts in the pages ahead of the known tokens, a tree in a scratch of its own. With one step
    the only draft comes out of the last draft-extend: there is no drafting forward at all."""
    steps, tree = config.num_steps, config.topk > 1
    return SpecPlan(
        width=verified(config),
        draft_slots=0 if tree else steps - 1,
        tree=tree,
        draft=steps > 1,
        draft_extend=True,
        successor_keys=True,
        scratch=(steps - 1) * config.topk if tree else 0,
        simulated=config.simulate_accept_length,
        depth=steps if tree else None,
        measures=(1, *depths(config)) if narrows(config) else (),
        seeded=config.acceptance == "match",
    )


def verified(config: Options) -> int:
    """Tokens that the target verifies a step. Where they are not given: a whole chain, or the smallest tree
    that holds a path of num_steps and topk siblings; and the known token."""
    least = max(config.num_steps, config.topk) + 1
    return least if config.num_draft_tokens is None else config.num_draft_tokens


def narrows(config: Options) -> bool:
    """Whether the width is chosen batch by batch. Forced acceptance is about one width: it stays."""
    return config.adaptive and config.simulate_accept_length is None


def depths(config: Options) -> dict[int, int]:
    """Widths that an adaptive drafter chooses from besides 1, with the deepest draft of each. A tree has one
    size; of long chains a few."""
    if config.topk > 1:
        return {verified(config): config.num_steps}
    widest = verified(config)
    some = {width for width in (2, 3, 4, 5, 6, 8, 12, 16, 24) if width < widest}
    return {width: width - 1 for width in sorted({*some, widest})}


def candidates(config: Options) -> int:
    """Nodes that a tree can choose from: the first level, then topk children of each of topk survivors."""
    return config.topk + (config.num_steps - 1) * config.topk**2


def problems(config: Options) -> list[str]:
    """One sentence each, with the way out."""
    found = _tree_problems(config) if config.topk > 1 else _chain_problems(config)
    if config.draft is not None and config.load == "dummy":
        found.append(
            f"spec.load=dummy makes random weights and reads no file, yet spec.draft={config.draft} is "
            "given; leave one of them out"
        )
    if config.acceptance == "ratio" and config.topk > 1:
        found.append(
            f"spec.acceptance=ratio judges one drawn draft at a time, and spec.topk={config.topk} drafts a "
            "tree; use spec.acceptance=match, which is exact for trees too, or spec.topk=1"
        )
    forced, most = config.simulate_accept_length, config.num_steps + 1
    if forced is not None and forced > most:
        found.append(
            f"spec.simulate_accept_length={forced:g} cannot be reached: spec.num_steps={config.num_steps} "
            f"emits at most {most} tokens a step; use a value from 1 to {most}, or more steps"
        )
    return found


def _chain_problems(config: Options) -> list[str]:
    tokens, steps = verified(config), config.num_steps
    if tokens == steps + 1:
        return []
    return [
        f"spec.num_draft_tokens={tokens} does not go with spec.num_steps={steps} and spec.topk=1: a chain "
        f"verifies its drafts and the known token, so use spec.num_draft_tokens={steps + 1} (or null) or "
        f"spec.num_steps={tokens - 1}, or a tree (spec.topk=2 or more)"
    ]


def _tree_problems(config: Options) -> list[str]:
    drafts, most, least = verified(config) - 1, candidates(config), max(config.topk, config.num_steps)
    shape = f"spec.num_steps={config.num_steps} and spec.topk={config.topk}"
    where = f"spec.num_draft_tokens={drafts + 1} with {shape}"
    if drafts > most:
        return [
            f"{where}: such a tree has {most} candidates, {drafts} are to be verified besides the known "
            f"token; use spec.num_draft_tokens={most + 1} or fewer, or more steps"
        ]
    if drafts < least:
        return [
            f"{where}: {drafts} drafts cannot hold {config.topk} siblings or a path of {config.num_steps}; "
            f"use spec.num_draft_tokens={least + 1} or more, or fewer steps and a smaller topk"
        ]
    return []
