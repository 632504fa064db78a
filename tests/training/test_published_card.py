"""No card of a draft tells where the machine that trained it keeps its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.tasks.base import Outcome, TaskContext
from engine.tasks.published import published
from speculative.eagle3.card import DRAFTS

HERE = (Path("/home/me/project/runs/1"), Path("/home/me/project"), Path("/"))
ABSOLUTE = re.compile(r"(?:^|[\s=\[,'\"`(:])(?:/|~/)[\w.-]")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("task.prompts=[/home/me/project/data/a.jsonl,b.jsonl]", "task.prompts=[data/a.jsonl,b.jsonl]"),
        ("task.text=[/home/me/project/runs/1/text.npz, /mnt/x/text.npz]", "task.text=[text.npz, text.npz]"),
        ("task.prompts=['/home/me/my data/a.txt',\"/x/b c.txt\"]", "task.prompts=['a.txt',\"b c.txt\"]"),
        ("model.path=/models/SmolLM2/", "model.path=SmolLM2"),
        ("task.output=/home/me/project", "task.output=."),
        ("hydra.run.dir=~/runs/2", "hydra.run.dir=2"),
        ("model=hf", "model=hf"),
        ("model.path=org/name", "model.path=org/name"),
        ("task.text=[../other/text.npz]", "task.text=[../other/text.npz]"),
        ("task.trainer.lr=0.002", "task.trainer.lr=0.002"),
        ("/home/me/Tiny", "Tiny"),
    ],
)
def test_paths_of_a_command_line_are_told_relatively(override: str, told: str) -> None:
    assert published(override, HERE) == told


def test_a_name_for_an_absolute_path_is_found_by_the_pattern() -> None:
    assert ABSOLUTE.search("python -m engine task.prompts=[/tmp/a.txt]")
    assert not ABSOLUTE.search("python -m engine task.prompts=[data/a.txt] 160,000 tokens/s")


def test_what_training_writes_beside_a_draft_holds_no_absolute_path(
    trained: tuple[Path, Outcome, TaskContext],
) -> None:
    folder, outcome, context = trained
    assert any(str(folder) in override for override in context.overrides), (
        "its files were given by full paths"
    )
    for name in ("README.md", "card.json"):
        text = (Path(outcome.result["draft"]) / name).read_text()
        assert str(folder) not in text
        assert not ABSOLUTE.search(text), name
        assert "task.prompts=[prompts.jsonl]" in text


@pytest.mark.parametrize(
    "file", [*DRAFTS.glob("*/README.md"), *DRAFTS.glob("*/card.json")], ids=lambda f: f.name
)
def test_what_is_shipped_holds_no_absolute_path(file: Path) -> None:
    assert not ABSOLUTE.search(file.read_text(encoding="utf-8"))
