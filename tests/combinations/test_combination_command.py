"""`python -m benchmarks.combinations`: a Markdown table with verdicts; the exit code tells of wrong ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from combination_cases import CPU, TORCH, TRITON, accepted_triton

from benchmarks import combinations
from benchmarks.combination_cells import Cell, covering, pairs
from benchmarks.combinations import REFERENCE, main, usual
from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.rules import violations
from engine.two_batches import driver

APART = ("weights", "draft weights", "margin")
ARGUMENTS = ("--attention", "torch", "--dummy-draft", "--tokens", "3", "--longest", "12", *CPU)


def only(monkeypatch: pytest.MonkeyPatch, *wanted: tuple[str, ...]) -> None:
    """Only the combinations of these names."""
    chosen = [cell for cell in TORCH if tuple(cell.names.values())[1:] in wanted]
    assert len(chosen) == len(wanted)
    monkeypatch.setattr(combinations, "cells", lambda attention, dummy_draft: chosen)


def test_a_table_of_verdicts(monkeypatch, capsys, tmp_path: Path):
    only(
        monkeypatch,
        ("none", "future", "none", "piecewise", "two_batch"),
        ("none", "future", "none", "full", "none"),
    )
    path = tmp_path / "table.json"
    assert main([*ARGUMENTS, "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "### attention=torch" in text
    assert "| attention | spec | overlap | graph | pcg | tbo | verdict |" in text
    assert "| torch | none | future | none | piecewise | two_batch | identical |" in text
    assert "| torch | none | future | none | full | none | refused: pcg=full captures attention too" in text
    assert "1 ran, 0 of them wrong; 1 refused by a rule." in text
    rows = json.loads(path.read_text())["sections"][0]["rows"]
    assert rows[1]["prefills from graphs"] > 0
    assert rows[1]["split passes"] > 0


def test_a_wrong_combination_is_named_and_ends_in_one(monkeypatch, capsys):
    """Halves joined in the wrong order: the table has to see it."""
    only(
        monkeypatch,
        ("none", "future", "none", "none", "none"),
        ("none", "future", "none", "none", "two_batch"),
    )
    joined = driver._joined
    monkeypatch.setattr(driver, "_joined", lambda halves: joined(halves[::-1]))
    assert main(ARGUMENTS) == 1
    text = capsys.readouterr().out
    assert "| torch | none | future | none | none | none | identical |" in text
    assert "| torch | none | future | none | none | two_batch | 5 DIFFERENT |" in text
    assert "2 ran, 1 of them wrong; 0 refused by a rule." in text


def test_one_that_breaks_is_shown_and_the_table_goes_on(monkeypatch, capsys):
    only(
        monkeypatch, ("none", "future", "none", "none", "two_batch"), ("none", "none", "none", "none", "none")
    )

    def broken(*_: object) -> None:
        raise RuntimeError("out of streams\nand more")

    monkeypatch.setattr(driver, "_joined", broken)
    assert main(ARGUMENTS) == 1
    text = capsys.readouterr().out
    assert "FAILED: RuntimeError: out of streams |" in text
    assert "| torch | none | none | none | none | none | identical |" in text


@pytest.mark.parametrize(
    "error", [UserError("cache.tokens=auto finds no room"), torch.OutOfMemoryError("full")]
)
def test_one_that_finds_no_room_is_not_wrong(monkeypatch, capsys, error: Exception):
    """Other programs may hold the card's memory: that says nothing of the combination."""
    only(
        monkeypatch, ("none", "future", "none", "none", "two_batch"), ("none", "none", "none", "none", "none")
    )

    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(driver, "_joined", full)
    assert main(ARGUMENTS) == 2
    text = capsys.readouterr().out
    assert f"| torch | none | future | none | none | two_batch | not run: {error} |" in text
    assert "1 ran, 0 of them wrong; 0 refused by a rule; 1 could not be run here." in text


def test_sizes_are_small_unless_the_overrides_say_otherwise(monkeypatch):
    asked: list[Sequence[str]] = []

    def reference(overrides: Sequence[str], tokens: int, longest: int) -> None:
        asked.append(overrides)
        raise KeyboardInterrupt

    monkeypatch.setattr(combinations, "Reference", reference)
    with pytest.raises(KeyboardInterrupt):
        main(["--tokens", "30", "--longest", "100", "model=tiny", "scheduler.max_running=7"])
    assert sorted(asked[0]) == [
        "cache.max_context=131",
        "cache.tokens=1170",
        "model=tiny",
        "sampling.max_tokens=30",
        "scheduler.chunk_tokens=64",
        "scheduler.max_running=7",
    ]


@pytest.mark.parametrize("tokens", [1, 16, 500])
def test_any_length_of_answer_finds_room(tokens):
    """The reference's settings are accepted for it, whatever an answer's usual length is."""
    assert not violations(compose(["model=smollm2", *usual(tokens, 200), *REFERENCE]))


def test_an_engine_of_the_embedded_model_takes_little_beside_its_weights():
    """Of the largest combination on a GPU, without the margin that nothing touches."""
    sizes = usual(32, 200)
    asked = ("model=smollm2", "model.dtype=float32", "device=cuda", *sizes)
    plans = [explain(compose(cell.overrides(asked))).plan for cell in covering(TRITON)]
    found = [sum(item.bytes for item in plan.items if item.name not in APART) for plan in plans if plan]
    assert len(found) == len(plans)
    assert max(found) < 640 << 20


@pytest.mark.parametrize("listed", [lambda: TORCH, accepted_triton], ids=["torch", "triton"])
def test_a_few_combinations_cover_every_pair(listed: Callable[[], Sequence[Cell]]):
    every = listed()
    few = covering(every)
    assert len(few) < len(every) / 3

    def covered(cells):
        return {pair for cell in cells for pair in pairs(cell)}

    assert covered(few) == covered(every)
    assert len(TRITON) == len(TORCH)
