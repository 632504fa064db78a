"""The benchmark of drafting: its arithmetic, its claims, its prompts, and one tiny run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.drafting import Racing, Took, figures
from benchmarks.prompt_sets import BUILT_IN, prompt_sets
from benchmarks.speculation import bounds, markdown, measure, parse
from engine import SamplingParams


def test_speed_ups_are_medians_of_pairs() -> None:
    plain = [Took(11, 2.0, 10, 1.0), Took(11, 4.0, 10, 2.0), Took(11, 2.0, 10, 1.0)]
    fast = [Took(11, 1.5, 10, 0.5), Took(11, 3.0, 10, 1.0), Took(11, 1.0, 10, 0.25)]
    found = figures(fast, plain)
    assert found["ratios"] == [2.0, 2.0, 4.0]
    assert found["speedup"] == 2.0
    assert found["speedup_with_prefill"] == pytest.approx(4 / 3)
    assert found["tokens_per_s"] == 20.0
    assert plain[0] + plain[1] == Took(22, 6.0, 20, 3.0)


def row(speedup: float) -> dict[str, float]:
    return {"speedup": speedup}


def test_the_claims_are_those_of_the_project() -> None:
    sets = {
        "gsm8k": {"eagle3": row(1.4), "ngram": row(0.98)},
        "summarise": {"eagle3": row(0.95), "ngram": row(1.2)},
    }
    report = {
        "speed": {"int4": {"sets": sets}},
        "acceptance": {"chain of 4": {"gsm8k": {"accept_length": 2.7}}},
        "temperature": 0.0,
    }
    found = {(b.value, b.limit, b.met) for b in bounds(report)}
    assert found == {
        (1.4, 1.3, True),
        (0.98, 0.97, True),
        (0.95, 0.97, False),
        (1.2, 1.3, False),
        (2.7, 2.8, False),
    }


def test_drawn_answers_claim_no_speed_up() -> None:
    """Only that drafts cost nothing: what is drawn at a high temperature hardly repeats itself."""
    sets = {"gsm8k": {"eagle3": row(1.1), "ngram": row(0.98)}, "summarise": {"ngram": row(0.96)}}
    found = bounds({"speed": {"int4": {"sets": sets}}, "acceptance": {}, "temperature": 1.5})
    assert [(b.limit, b.met) for b in found] == [(0.97, True), (0.97, True), (0.97, False)]


def test_a_prompts_answer_is_drawn_alike_everywhere() -> None:
    how = Racing(1, 8, 2, temperature=1.5)
    assert how.params([5, 6]) == how.params([5, 6])
    assert how.params([5, 6]).seed != how.params([5, 7]).seed
    assert (how.params([5]).temperature, how.params([5]).max_tokens) == (1.5, 8)
    assert Racing(1, 8, 2).params([5]) == SamplingParams(max_tokens=8)


def test_prompts_come_from_a_folder_or_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alpaca").mkdir()
    rows = [{"turns": [f"question {i}", "and then?"]} for i in range(5)]
    (tmp_path / "alpaca" / "question.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (found,) = prompt_sets(tmp_path, 2)
    assert (found.name, found.texts) == ("alpaca", ("question 0", "question 1"))
    with pytest.raises(SystemExit, match="holds none of"):
        prompt_sets(tmp_path / "alpaca", 2)
    monkeypatch.chdir(tmp_path / "alpaca")
    (own,) = prompt_sets(None, 3)
    assert own.name == BUILT_IN
    assert len(own.texts) == 3


def test_a_tiny_run_reports_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    sizes = "--prompts 2 --raced 1 --tokens 6 --accept-tokens 6 --repeats 1 --threads 1"
    report = measure(parse(["--model", "tiny", "--dtypes", "float32", *sizes.split()]))
    speeds = report["speed"]["float32"]["sets"][BUILT_IN]
    assert set(speeds) == {"plain", "ngram"}, "there is no draft for a random model"
    assert speeds["plain"]["speedup"] == 1.0
    assert report["acceptance"]["n-gram"][BUILT_IN]["accept_length"] >= 1
    assert report["speed"]["float32"]["cost_in_plain_steps"]["ngram"]["1"]["1"] == 1.0
    text = markdown(json.loads(json.dumps(report)))
    for words in ("| float32 | built-in | ngram |", "| n-gram | built-in |", "cost of a step", "bound"):
        assert words in text
