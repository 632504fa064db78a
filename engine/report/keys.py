"""Keys of settings: which group each belongs to, and what a command line says. Knows no row."""

from __future__ import annotations

from collections.abc import Iterable

# Settings that change what is computed, not how: rows that differ in them did other work.
WORK = ("model", "workload", "arrivals", "sampling", "task", "eval", "prompt", "seed")
SEED = "seed"


def root(key: str) -> str:
    """The group that a key belongs to: `attention@spec.draft_attention` is spec's, `spec.topk` too."""
    return key.partition("@")[2].partition(".")[0] or key.partition(".")[0]


def is_work(key: str) -> bool:
    """Whether rows that differ in it did other work."""
    return root(key) in WORK


def belongs(key: str, group: str) -> bool:
    """Whether a key is a setting of the group's option, and goes with it."""
    return key != group and root(key) == group


def parsed(overrides: Iterable[str]) -> dict[str, str]:
    """key -> value of a command line; Hydra's own keys left out."""
    pairs = (override.partition("=") for override in overrides)
    found = {key.lstrip("+"): value.strip("'\"") for key, equal, value in pairs if equal}
    return {key: value for key, value in found.items() if root(key) != "hydra"}
