"""A prompt and a workload exclude each other: who gives both is told, instead of losing one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.rules import compose_checked
from engine.sweeps.axes import axes_of, extra_lines, lines_of
from engine.sweeps.cells import judged
from engine.sweeps.states import OK, REJECTED
from engine.sweeps.study import load_study

TINY = ("model=tiny", "device=cpu")


@pytest.mark.parametrize(
    "lines",
    [
        ("workload=random",),
        ("workload=prompts",),
        ("workload.limit=2",),
        ("workload=random", "workload.count=2"),
        ("arrivals=poisson",),
    ],
)
@pytest.mark.parametrize("task", ["generate", "bench", "verify"])
def test_a_prompt_beside_what_it_would_hide_is_refused_with_the_way_out(
    task: str, lines: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        compose_checked([*TINY, f"task={task}", "prompt=hi", *lines])
    (said,) = str(caught.value).splitlines()
    assert all(line in said for line in lines)
    assert "prompt" in said
    assert "leave" in said


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (["prompt=hi"], "not applicable"),
        (["prompt=hi", "arrivals=none"], "not applicable"),
        (["workload=random", "workload.count=2"], "ok"),
        (["workload=random", "arrivals=poisson"], "ok"),
        (["task=chat", "prompt=workload=random"], "not applicable"),
        ([], "ok"),
    ],
)
def test_one_of_the_two_is_as_it_was(lines: list[str], verdict: str) -> None:
    found = explain(compose([*TINY, *lines]))
    assert next(v for v in found.verdicts if v.rule == "workload").verdict == verdict
    assert found.accepted


def test_the_command_line_says_so_before_a_folder_is_made(cli: Callable[..., Any], tmp_path: Path) -> None:
    ran = cli(*TINY, "prompt=hi", "workload.limit=1")
    assert (ran.code, ran.out) == (1, "")
    assert "workload.limit=1 would change nothing beside prompt=" in ran.err
    assert not list(tmp_path.iterdir())


def cells(name: str, *overrides: str, group: str = "sweep") -> list[tuple[dict[str, str], str]]:
    study = load_study(name, [], group)
    axes = axes_of(study, overrides)
    found = judged([*lines_of(axes), *extra_lines(axes, study.config.extra)])
    return [(dict(line.split("=", 1) for line in cell.overrides), cell.verdict) for cell in found]


@pytest.mark.parametrize(("name", "narrow"), [("draft_length", ("spec.num_steps=2",)), ("page_size", ())])
def test_a_prompt_over_a_study_takes_the_place_of_its_workload(name: str, narrow: tuple[str, ...]) -> None:
    studied = cells(name, *narrow, group="experiment")
    assert all("workload" in overrides for overrides, _ in studied)
    over = cells(name, "prompt=hi", *narrow, group="experiment")
    assert {verdict for _, verdict in over} == {OK}
    for overrides, _ in over:
        assert overrides["prompt"].strip("'") == "hi"
        assert not any(key.startswith("workload") for key in overrides)


def test_both_typed_into_a_sweep_are_a_rejected_cell() -> None:
    found = cells("none", *TINY, "prompt=hi", "workload.limit=1,2")
    assert [verdict for _, verdict in found] == [REJECTED] * 2
