"""`python -m engine.diff A B`: settings, stack, batches, answers, figures; text, JSON and exit codes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from engine.diff.cli import DIFFERENT, SAME, TROUBLE, main
from engine.diff.comparing import UNKNOWN
from engine.diff.figures import figures

Diff = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def diff(capsys: pytest.CaptureFixture[str]) -> Diff:
    """(exit code, text, document) of two folders."""

    def do(a: Path, b: Path) -> tuple[int, str, dict[str, Any]]:
        code = main([str(a), str(b)])
        text = capsys.readouterr().out
        assert main(["--json", str(a), str(b)]) == code
        return code, text, json.loads(capsys.readouterr().out)

    return do


def test_a_run_and_its_replay_are_the_same(run: Any, again: Any, diff: Diff) -> None:
    folder = run("workload.limit=2", "sampling=creative")
    second = Path(again(folder)[1].splitlines()[-1])
    code, text, document = diff(folder, second)
    assert (code, document["differ"]) == (SAME, False)
    for line in (
        "settings: the same",
        "stack: the same: code, packages",
        "batches: the same",
        "answers: 2 of 2 are",
    ):
        assert line in text
    assert {row["name"] for row in document["figures"]} >= {"seconds", "output_tokens_per_s"}
    assert all(row["beyond_noise"] is None for row in document["figures"]), "one run each tells no noise"


def test_settings_batches_and_the_first_differing_token(run: Any, diff: Diff) -> None:
    a = run("workload.limit=3", "seed=1", "sampling=creative", "sampling.max_tokens=20")
    b = run("workload.limit=3", "seed=2", "sampling=creative", "sampling.max_tokens=21", "overlap=none")
    code, text, document = diff(a, b)
    assert (code, document["differ"]) == (DIFFERENT, True)
    assert document["settings"]["sampling.max_tokens"] == [20, 21]
    assert set(document["settings"]) == {"seed", "sampling.max_tokens", "overlap._target_"}
    assert document["stack"] == {"seed": [1, 2]}
    assert document["batches"].startswith("after step ")
    assert "  sampling.max_tokens: 20 -> 21\n" in text
    first = document["differences"][0]
    ids = [_ids(folder)[first["request"]] for folder in (a, b)]
    at = first["position"]
    assert ids[0][:at] == ids[1][:at]
    assert first["tokens"] == [ids[0][at], ids[1][at]]
    assert (
        f"answer {first['request'] + 1}: other tokens from token {at} ({ids[0][at]} -> {ids[1][at]})" in text
    )


def _ids(folder: Path) -> list[list[int]]:
    rows = map(json.loads, (folder / "outputs.jsonl").read_text().splitlines())
    return [row["completions"][0]["token_ids"] for row in sorted(rows, key=lambda row: row["index"])]


def test_other_prompts_and_missing_answers_are_said(run: Any, diff: Diff, tmp_path: Path) -> None:
    for name, text in (("a", "one\ntwo\nthree\n"), ("b", "one\nTWO\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    a, b = (run("workload=file", f"workload.path={tmp_path / name}.txt", "seed=1") for name in ("a", "b"))
    code, text, document = diff(a, b)
    assert (code, document["prompts"]) == (DIFFERENT, [1])
    assert "  other prompts: 2\n" in text
    assert "answer 3: the answer is missing now from token 0" in text


def test_stack_and_unknown_batches(run: Any, diff: Diff, tmp_path: Path) -> None:
    a = run("workload.limit=1")
    b = tmp_path / "b"
    shutil.copytree(a, b)
    facts = json.loads((b / "run.json").read_text())
    facts["versions"]["torch"] = "9.9"
    facts["model_files"] = {"weights.gguf": "ab"}
    (b / "run.json").write_text(json.dumps(facts))
    (b / "schedule.jsonl").unlink()
    code, text, document = diff(a, b)
    assert (code, document["batches"]) == (DIFFERENT, UNKNOWN)
    assert set(document["stack"]) == {"versions.torch", "model_files.weights.gguf"}
    assert " -> 9.9\n" in text
    assert document["figures"] == []


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('["d",1,0,1,4]', "after step 5: the end of request 1 (length, 6 tokens) instead of another"),
        ('["d",1,0,1,9]', "after step 6: another decode step"),
        ('["d",2,0,1,5]', "after step 1: a decode step of 1 request(s), width 2 instead of"),
        (None, "after step 1: "),
    ],
)
def test_batches_are_compared_step_by_step(
    run: Any, diff: Diff, tmp_path: Path, line: Any, where: str
) -> None:
    a = run("workload.limit=1")
    b = tmp_path / "b"
    shutil.copytree(a, b)
    course = (a / "schedule.jsonl").read_text().splitlines()
    at = course.index('["d",1,0,1,5]')
    changed = [*course[:at], line, *course[at + 1 :]] if line else course[:at]
    (b / "schedule.jsonl").write_text("\n".join(changed) + "\n")
    code, _, document = diff(a, b)
    assert document["batches"].startswith(where), document["batches"]
    assert code == SAME, "batches alone are no difference of runs whose answers are the same"


def result(*speeds: float, **more: Any) -> dict[str, Any]:
    runs = [{"output_tokens_per_s": speed, "ttft_ms": {"p50": 10.0}} for speed in speeds]
    middle = sorted(speeds)[len(speeds) // 2]
    return {"output_tokens_per_s": middle, "ttft_ms": {"p50": 10.0}, "runs": runs, "seed": 1, **more}


def test_a_difference_beyond_the_repeats() -> None:
    a, b = (100.0, 101.0, 99.0), (110.0, 109.0, 111.5)
    (found,) = figures(result(*a), result(*b, seed=2))
    assert (found.name, found.beyond) == ("output_tokens_per_s", True)
    assert found.first == pytest.approx((100 * 101 * 99) ** (1 / 3))
    assert found.second == pytest.approx((110 * 109 * 111.5) ** (1 / 3))
    assert found.ratio is not None
    assert found.ratio.low is not None
    expected = stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    assert expected.pvalue <= found.ratio.p < 6 * expected.pvalue, "degrees of freedom are rounded down"
    assert found.ratio.low < np.exp(np.mean(np.log(b)) - np.mean(np.log(a))) < (found.ratio.high or 0)


@pytest.mark.parametrize(
    ("a", "b", "beyond"),
    [
        ((100.0, 105.0, 95.0), (103.0, 98.0, 107.0), False),
        ((100.0, 101.0), (150.0, 151.0), None),  # two repeats claim nothing
        ((100.0,), (150.0,), None),
    ],
)
def test_noise(a: tuple[float, ...], b: tuple[float, ...], beyond: bool | None) -> None:
    (found,) = figures(result(*a), result(*b))
    assert found.beyond is beyond
    assert found.ratio is not None


def test_of_many_figures_some_lie_apart_by_chance() -> None:
    """Two hundred figures of pure noise: none is a difference, though single tests say so of some."""
    draw = random.Random(5)

    def side() -> dict[str, Any]:
        runs = [{f"f{i}": draw.gauss(100, 2) for i in range(200)} for _ in range(4)]
        return {**runs[0], "runs": runs}

    found = figures(side(), side())
    assert len(found) == 200
    assert sum(figure.ratio is not None and (figure.ratio.p or 1) < 0.05 for figure in found) > 0
    assert not any(figure.beyond for figure in found)


def test_figures_of_one_side_and_zeros() -> None:
    found = {
        f.name: f
        for f in figures({"a": 1, "z": 0, "t": True, "deep": {"x": 2}}, {"b": 2, "z": 3, "deep": {"x": 2}})
    }
    assert set(found) == {"a", "b", "z"}
    assert (found["a"].second, found["b"].first, found["z"].ratio) == (None, None, None)


def test_a_faster_bench_is_a_difference(run: Any, diff: Diff, tmp_path: Path) -> None:
    a = run("task=bench", "workload.limit=2", "task.repeats=3")
    b = tmp_path / "b"
    shutil.copytree(a, b)
    document = json.loads((b / "result.json").read_text())
    for place in (document, *document["runs"]):
        place["output_tokens_per_s"] *= 3
    for number, place in enumerate(document["runs"]):
        place["output_tokens_per_s"] = 3000.0 + number
    (b / "result.json").write_text(json.dumps(document))
    for number, place in enumerate((original := json.loads((a / "result.json").read_text()))["runs"]):
        place["output_tokens_per_s"] = 1000.0 + number
    (a / "result.json").write_text(json.dumps(original))
    code, text, found = diff(a, b)
    assert code == DIFFERENT
    assert [row["name"] for row in found["figures"] if row["beyond_noise"]] == ["output_tokens_per_s"]
    assert "beyond the noise" in text
    assert "+199." in text


@pytest.mark.parametrize("arguments", [[], ["one"], ["a", "b", "c"], ["a", "b", "--colour"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == TROUBLE
    assert "engine.diff A B" in capsys.readouterr().err
    assert main(["--help"]) == SAME


def test_a_folder_that_is_no_run_is_one_sentence(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run("workload.limit=1")), str(tmp_path)]) == TROUBLE
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} is not a readable run folder")
