"""What task=eval refuses before a model is read, and what the rules say of its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from evals.eval_cases import run, write

from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.rules import compose_checked


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "choose eval=gsm8k or eval=humaneval"),
        (["eval=gsm8k"], "eval=gsm8k needs its data: set eval.path=FILE"),
        (["eval=humaneval"], "eval.path=sample"),
        (["eval=gsm8k", "eval.path=/no/such.jsonl"], "cannot read eval.path=/no/such.jsonl"),
        (["eval=gsm8k", "eval.path=sample", "prompt=hi"], "leave prompt out"),
        (["eval=gsm8k", "eval.path=sample", "task=bench"], "task=bench asks no questions of eval=gsm8k"),
        (["eval=gsm8k", "eval.path=sample", "arrivals=poisson"], "use arrivals=none"),
        (["eval=gsm8k", "eval.path=sample", "eval.against=nonsense"], "neither a run folder nor overrides"),
        (["eval=gsm8k", "eval.path=sample", "eval.against='spec=none"], "eval.against"),
        (["eval=gsm8k", "eval.path=sample", "eval.against=/tmp"], "not a readable run folder"),
        (["eval=gsm8k", "eval.path=sample", "eval.against=eval=humaneval"], "leave out eval=humaneval"),
        (["eval=gsm8k", "eval.path=sample", "eval.resume=/no/such"], "eval.resume=/no/such"),
        (["eval=gsm8k", "eval.path=sample", "spec=ngram", "spec.simulate_accept_length=2"], "task=bench"),
    ],
)
def test_startup_refuses_before_a_model_is_read(overrides: list[str], words: str) -> None:
    task = [] if any(line.startswith("task=") for line in overrides) else ["task=eval"]
    with pytest.raises(UserError) as caught:
        compose_checked([*task, "model=tiny", "device=cpu", *overrides])
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sampling.n=2"], "sampling.n=2"),
        (["eval.against=spec=nono"], "spec has no option nono"),
        (["eval.against=model=tiny"], "changes nothing"),
        (["eval.against=eval.path=/no/such"], "cannot read eval.path=/no/such"),
    ],
)
def test_a_run_that_cannot_be_compared_builds_no_engine(
    tmp_path: Path, overrides: list[str], words: str
) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, [], "eval=gsm8k", write(tmp_path / "q.jsonl"), *overrides)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("path", "verdict", "words"),
    [("sample", "ok", "eval=gsm8k can be read"), ("/no/such", "violated", "cannot read eval.path=/no/such")],
)
def test_explain_judges_the_questions(path: str, verdict: str, words: str) -> None:
    found = explain(compose(["task=explain", "model=tiny", "eval=gsm8k", f"eval.path={path}"]))
    rule = next(v for v in found.verdicts if v.rule == "evaluation")
    assert rule.verdict == verdict
    assert words in rule.reason
    assert found.accepted is (verdict == "ok")


@pytest.mark.parametrize(
    ("lines", "verdict", "words"),
    [
        ([], "not applicable", "task=eval asks no workload"),
        (["workload=prompts"], "not applicable", "task=eval asks no workload"),
        (["workload=file"], "violated", "so workload=file would change nothing; leave it out"),
        (["workload.limit=3"], "violated", "so workload.limit=3 would change nothing"),
    ],
)
def test_a_workload_that_nobody_asks_is_refused_by_name(lines: list[str], verdict: str, words: str) -> None:
    found = explain(compose(["task=eval", "model=tiny", "eval=gsm8k", "eval.path=sample", *lines]))
    rule = next(v for v in found.verdicts if v.rule == "workload")
    assert rule.verdict == verdict
    assert words in rule.reason
    assert found.facts.parts["eval"].cls.__name__ == "Gsm8kEval"


@pytest.mark.parametrize("task", ["chat", "train_eagle3"])
def test_other_tasks_without_a_workload_refuse_one_too(task: str) -> None:
    found = explain(compose([f"task={task}", "model=tiny", "workload.limit=3"]))
    assert f"task={task} asks no workload" in next(v for v in found.verdicts if v.violated).reason
