"""`task=eval`: the accuracy of one configuration on questions with known answers, alone or against another.

Importable without torch. Knows no data set and no part by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.build import choice, make_config, number, target_class
from engine.errors import UserError
from engine.evals.base import Evaluation
from engine.evals.earlier import EarlierRun
from engine.params import SamplingParams
from engine.runs import QUESTIONS
from engine.tasks.base import EXIT_INTERRUPTED, EXIT_OK, Outcome, Task, TaskContext
from engine.tasks.eval_report import eval_result, eval_text
from engine.tasks.examine import OTHER, Examiner
from engine.tasks.interrupts import StopFlag
from engine.tasks.opponents import opponent_of, settings_that_differ
from engine.tasks.requests import sampling_params

MARKED_BY = ("eval.run_code", "eval.seconds", "eval.megabytes", "eval.workers")  # not what is answered


class Eval(Task):
    """Every question once. Each answer is marked and written as it comes, so that nothing can be lost."""

    asks = "eval"
    judges_outputs = True
    main_figure = "accuracy"

    @dataclass(frozen=True)
    class Config(Task.Config):
        """concurrency: questions in flight; null: all, the engine queues them."""

        format: str = choice("text", ("text", "json"))
        concurrency: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        self._config = config

    def run(self, context: TaskContext) -> Outcome:
        params = single_answers(context.config)
        evaluation = load_evaluation(context.config)
        evaluation.fetch()
        questions = evaluation.questions()
        opponent = opponent_of(context, evaluation)
        config, earlier = resumed(context.config, evaluation)
        context.folder().write_lines(QUESTIONS, (question.row for question in questions))
        with StopFlag(context.stderr) as stop, context.folder().open_lines() as out:
            examine = Examiner(context, params, self._config.concurrency, stop, out)
            own = examine(config, evaluation, questions, known=earlier.rows if earlier else None)
            facts = {**_facts(earlier), **own.facts}
            others = None if stop.requested else opponent.rows(partial(_ask_other, examine, facts["seed"]))
            stopped = stop.requested
        result = eval_result(evaluation, questions, own, opponent, others, facts, stopped=stopped)
        if stopped:
            result["warnings"].append(f"interrupted: eval.resume={context.folder().path} goes on from here")
        return Outcome(result, eval_text(result), EXIT_INTERRUPTED if stopped else EXIT_OK)


def _ask_other(examine: Examiner, seed: int | None, config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The marked answers of the configuration that is compared with, drawn by the same seed unless it has one
    of its own."""
    config = {**config, "seed": seed if config["seed"] is None else config["seed"]}
    evaluation = load_evaluation(config)
    evaluation.fetch()
    return examine(config, evaluation, evaluation.questions(), OTHER).rows


def single_answers(config: Mapping[str, Any]) -> SamplingParams:
    """The sampling parameters; one answer a question is marked."""
    params = sampling_params(config)
    if params.n != 1:
        raise UserError(f"task=eval marks one answer a question: sampling.n={params.n} cannot work, use 1")
    return params


def load_evaluation(config: Mapping[str, Any]) -> Evaluation:
    """The chosen questions. Reads files, and an earlier run, now: before a model is read."""
    node = config["eval"]
    cls = target_class(node["_target_"])
    evaluation = cls(make_config(cls, node, "eval"))
    assert isinstance(evaluation, Evaluation)
    return evaluation


def resumed(config: Mapping[str, Any], evaluation: Evaluation) -> tuple[Mapping[str, Any], EarlierRun | None]:
    """The configuration with the seed of the run that is resumed, and that run. UserError where its answers
    were made with other settings."""
    directory = evaluation.config.resume
    if not directory:
        return config, None
    earlier = EarlierRun.read(directory, "eval.resume")
    differs = [key for key in settings_that_differ(earlier.config, config) if key not in MARKED_BY]
    if differs:
        raise UserError(
            f"eval.resume={directory}: its answers were made with other settings ({', '.join(differs)}): "
            "give that run's settings, or leave eval.resume out"
        )
    seed = earlier.facts.get("seed") if config.get("seed") is None else config["seed"]
    return {**config, "seed": seed}, earlier


def _facts(earlier: EarlierRun | None) -> dict[str, Any]:
    """What result.json says of the engine where none had to be built."""
    known = {} if earlier is None else earlier.facts
    return {name: known.get(name) for name in ("seed", "model", "device", "dtype")}
