"""task=eval on the embedded model: drafts change no answer, so pairs tell nothing apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.cli import main

DATA = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "test.jsonl"
MODEL = ("model.dtype=float32", "device=cpu", "threads=1")


@pytest.mark.model
def test_drafts_change_no_answer_on_gsm8k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Field report L2: equal limits on both sides, and the same accuracy."""
    path = DATA if DATA.is_file() else "sample"
    command = (
        "task=eval",
        "eval=gsm8k",
        f"eval.path={path}",
        "eval.limit=6",
        "sampling.max_tokens=96",
        "spec=eagle3",
        "spec.adaptive=false",
        "eval.against=spec=none",
        "task.format=json",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    assert main([*command, *MODEL]) == 0
    result = json.loads(capsys.readouterr().out)
    against = result["against"]
    assert result["answered"] == against["compared"] == against["identical_answers"] == 6
    assert result["metrics"]["accepted_drafts"] > 0
    for score in ("flexible", "strict"):
        pair = against["pairs"][score]
        assert (pair["only_this"], pair["only_other"], pair["p_value"]) == (0, 0, 1.0)
        assert against["scores"][score] == result["scores"][score]
    assert any(key.startswith("spec") for key in against["differs"])
