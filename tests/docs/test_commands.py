"""Commands of the pages are made of options that exist: each composes as it is written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from engine.compose import compose

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "speculative").rglob("README.md")),
]
MADE = {"attention=window", "spec=repeat", "model=count"}  # parts that docs/adding.md tells to write
STARTS = ("syncless ", "python -m engine ")


def commands(text: str) -> list[list[str]]:
    """Overrides of each command line of one engine in code blocks and spans. Those that leave something open
    (three dots, words in capitals for a value) and those of sweeps are left out."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    found = []
    for line in lines:
        start = next((start for start in STARTS if line.startswith(start)), None)
        words = shlex.split(line.removeprefix(start or ""), comments=True)
        if start and all("=" in word and "..." not in word for word in words):
            found.append(words)
    return [words for words in found if not any(re.search(r"^(sweep|experiment|resume)=", w) for w in words)]


CASES = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:90]}")
    for page in PAGES
    for words in commands(page.read_text())
    if not MADE.intersection(words)
]


@pytest.mark.parametrize("words", CASES)
def test_a_command_of_a_page_composes(words: list[str]) -> None:
    wrong = {"atention=triton", "cache.page_size=-3"}  # README shows what a wrong choice is answered with
    if not wrong.intersection(words):
        assert compose(words).cfg["task"]


def test_there_are_commands() -> None:
    assert len(CASES) > 40


@pytest.mark.parametrize("key", ["command", "text_command"])
def test_the_commands_of_the_drafts_card_compose(key: str) -> None:
    (card,) = (ROOT / "speculative/eagle3/drafts").glob("*/card.json")
    command = json.loads(card.read_text())[key].partition(" (")[0]
    words = shlex.split(command)[3:]
    assert compose(words).cfg["task"]["_target_"].endswith("TrainEagle3")
