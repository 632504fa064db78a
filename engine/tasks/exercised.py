"""Which features a run has really used: equal outputs prove nothing of a path that was never taken.

Knows counters; importable without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.metrics import rates
from engine.tasks.base import TextEngine

_NAMES = {
    "drafted_tokens": "drafts proposed",
    "accepted_drafts": "drafts accepted",
    "draft_too_long": "requests past the draft's positions",
    "cached_tokens": "cached prompt tokens",
    "retractions": "retractions",
    "overshoot_tokens": "tokens dropped behind an end",
    "graph_prefills": "prefill passes from graphs",
    "eager_prefills": "prefill passes outside of graphs",
    "split_passes": "passes in two halves",
    "unsplit_passes": "passes below the size that is split",
}


def exercised(engine: TextEngine) -> dict[str, Any]:
    """accept_length: tokens a step and request. widths: decode steps by width. batch: largest. The rest are
    counters of the engine's whole life."""
    counts = engine.metrics.snapshot()
    widths = engine.metrics.spec_counts().widths
    return {
        "accept_length": rates(counts)["accept_length"],
        "widths": {str(width): widths[width] for width in sorted(widths)},
        "prefill_steps": counts["extend_steps"],
        "batch": counts["peak_running"],
        **{name: counts[name] for name in _NAMES},
        "drafts": engine.spec.width - 1,
    }


def exercised_line(facts: Mapping[str, Any]) -> str:
    """One line for people, and what a check of drafts without a single accepted one is worth."""
    length = facts["accept_length"]
    parts = [f"{facts['batch']} requests a step", f"{facts['prefill_steps']} prefill steps"]
    parts += [] if length is None else [f"{length:.2f} tokens a decode step"]
    parts += [f"widths {', '.join(facts['widths'])}"] if len(facts["widths"]) > 1 else []
    parts += [f"{facts[name]} {text}" for name, text in _NAMES.items() if facts[name]]
    line = f"exercised: {'; '.join(parts)}"
    if facts["drafts"] and not facts["accepted_drafts"]:
        line += "\nno draft was accepted, so accepted runs were not checked"
    return line
