"""The model cards of a trained draft: card.json for the engine, README.md for people. Knows figures only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.models.shape import ModelShape

CARD, README = "card.json", "README.md"
CURVE_ROWS = 12


def write_cards(
    folder: Path,
    target: ModelShape,
    figures: Mapping[str, Any],
    curve: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
    drafts: int,
) -> None:
    """facts: `target` (its name), `data`, `command`, `hardware` in words, and whatever else is worth keeping.

    card.json's accept_length is what the acceptance alarm compares with; there is none when nothing was
    measured.
    """
    sets = figures["sets"]
    card = {
        "target": {
            "name": facts.get("target", target.architecture),
            "hidden_size": target.hidden_size,
            "num_layers": target.num_layers,
            "vocab_size": target.vocab_size,
        },
        "accept_length": {name: found["accept_length"] for name, found in sets.items()},
        "acceptance_per_position": {name: found["acceptance_per_position"] for name, found in sets.items()},
        "chain_drafts": drafts,
        "tree": None,
        "accept_length_by_vocabulary": figures["by_vocab"],
        "coverage_by_vocabulary": figures["coverage"],
        **{key: value for key, value in facts.items() if key != "target"},
        "curve": thinned(curve),
    }
    if sets:  # without a measurement there is nothing that an engine could expect
        (folder / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    (folder / README).write_text(readme(card), encoding="utf-8")


def thinned(curve: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """About a dozen entries, the first and the last among them."""
    if len(curve) <= CURVE_ROWS:
        return list(curve)
    last = len(curve) - 1
    return [curve[round(i * last / (CURVE_ROWS - 1))] for i in range(CURVE_ROWS)]


def readme(card: Mapping[str, Any]) -> str:
    """The card for people."""
    return "\n".join(
        [
            f"# EAGLE3 draft for {card['target']['name']}",
            "",
            "One decoder layer that reads three hidden states of its target and proposes the next tokens, in "
            "the layout that SGLang, vLLM and SpecForge read. Trained with `task=train_eagle3`.",
            "",
            f"* data: {card.get('data', 'not recorded')}",
            f"* command: `{card.get('command', 'not recorded')}`",
            f"* hardware: {card.get('hardware', 'not recorded')}",
            "",
            "## Acceptance",
            "",
            *_measured(card),
            "",
            "## Training",
            "",
            *_curve_table(card["curve"]),
            "",
        ]
    )


def _measured(card: Mapping[str, Any]) -> list[str]:
    if not card["accept_length"]:
        return ["Not measured: the run named no prompts to measure on (`task.evaluate`)."]
    return [
        f"Greedy chain of {card['chain_drafts']} drafts, chat template, end of sequence honoured. Tokens "
        "a step are those that a verify step emits on average; the other columns are the share of steps "
        "that accept the draft at that position.",
        "",
        *_acceptance_table(card),
        "",
        "## Draft vocabulary",
        "",
        "Tokens a step when the same head may say only its most frequent tokens.",
        "",
        *_vocabulary_table(card),
    ]


def _acceptance_table(card: Mapping[str, Any]) -> list[str]:
    positions = range(1, card["chain_drafts"] + 1)
    rows = [
        [name, f"{length:.3f}", *(f"{x:.3f}" for x in card["acceptance_per_position"][name])]
        for name, length in card["accept_length"].items()
    ]
    return table(["set", "tokens a step", *(f"draft {i}" for i in positions)], rows)


def _vocabulary_table(card: Mapping[str, Any]) -> list[str]:
    by_size, coverage = card["accept_length_by_vocabulary"], card["coverage_by_vocabulary"]
    names = list(card["accept_length"])
    rows = [
        [size, f"{coverage[size]:.2%}", *(f"{by_size[size][name]:.3f}" for name in names)]
        for size in (by_size or {})
    ]
    return table(["draft tokens", "of the training text", *names], rows)


def _curve_table(curve: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            str(point["step"]),
            f"{point['seconds']:.0f}",
            f"{point['loss']:.3f}",
            f"{point['accept_length']:.3f}",
            *(f"{x:.3f}" for x in point["chain"]),
        ]
        for point in curve
    ]
    steps = range(1, len(curve[0]["chain"]) + 1) if curve else ()
    return table(["step", "seconds", "loss", "expected tokens a step", *(f"draft {i}" for i in steps)], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    rule = "|" + "---|" * len(head)
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]
