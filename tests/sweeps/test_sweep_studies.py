"""The committed studies: each composes, each says all of its settings, each can be narrowed."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from engine.build import TARGET, target_class
from engine.conf_tree import CONF, EXPERIMENTS, STUDIES, conf_tree
from engine.errors import UserError
from engine.sweeps.axes import axes_of, extra_lines, lines_of
from engine.sweeps.cells import Cell, judged
from engine.sweeps.request import sweep_request
from engine.sweeps.search import combinations
from engine.sweeps.states import OK, REJECTED
from engine.sweeps.study import Study, load_study

NAMES = sorted(conf_tree().studies)
GROUP = {name: option.group for name, option in conf_tree().studies.items()}
CPU = ("device=cpu",)
NARROW = {
    "none": ("model=tiny",),
    "smoke": (),
    "speculation": ("task.concurrency=4",),
    "overlap": ("task.concurrency=8", "spec=none"),
    "grid": ("tbo=none", "pcg=none", "overlap=none", "graph=none,step"),
    "draft_shape": ("spec.num_steps=3,4", "spec.topk=1,4", "spec.num_draft_tokens=null,12"),
    "run_ahead": ("task.concurrency=4",),
    "chain_tree": (),
    "drafters_by_text": ("spec=none,ngram",),
    "draft_length": ("spec.num_steps=2,6",),
    "host_lengths": ("overlap=future",),
    "page_size": (),
    "chunk_size": (),
}
EXPECTED = {
    "none": [OK],
    "smoke": [OK] * 6 + [REJECTED] * 2 + [OK],
    "speculation": [OK] * 6,
    "overlap": [OK] * 2,
    "grid": [OK, REJECTED] * 3 + [OK] * 6,
    "draft_shape": [OK, REJECTED, OK, OK] * 2 + [OK],
    "run_ahead": [OK] * 4,
    "chain_tree": [OK] * 6,
    "drafters_by_text": [OK] * 8,
    "draft_length": [OK] * 8,
    "host_lengths": [OK] * 4,
    "page_size": [OK] * 3,
    "chunk_size": [OK] * 3,
}


def cells(name: str, *overrides: str) -> tuple[Cell, ...]:
    study = load_study(name, [], GROUP[name])
    axes = axes_of(study, overrides)
    return judged([*lines_of(axes), *extra_lines(axes, study.config.extra)])


@pytest.mark.parametrize("name", NAMES)
def test_a_study_is_described_and_spells_out_every_setting(name):
    assert conf_tree().studies[name].summary
    node = yaml.safe_load((CONF / GROUP[name] / f"{name}.yaml").read_text())
    assert target_class(node.pop(TARGET)) is Study
    assert set(node) == {field.name for field in fields(Study.Config)}


@pytest.mark.parametrize("name", NAMES)
def test_the_verdicts_of_a_narrowed_study(name):
    assert [cell.verdict for cell in cells(name, *CPU, *NARROW[name])] == EXPECTED[name]


def test_the_smoke_study_has_two_backends_three_drafters_and_a_job_that_kills_itself():
    found = [cell for cell in cells("smoke", *CPU) if cell.verdict == OK]
    wanted = [
        (backend, drafter) for backend in ("torch", "hybrid") for drafter in ("none", "ngram", "eagle3")
    ]
    assert [
        (c.choices["attention"], c.choices["spec"]) for c in found if c.choices["task"] == "bench"
    ] == wanted
    assert [c.choices["task"] for c in found].count("crash") == 1


def test_a_baseline_is_among_its_studys_cells():
    for name in NAMES:
        study = load_study(name, [], GROUP[name])
        lines = [*lines_of(axes_of(study, [])), *extra_lines(axes_of(study, []), study.config.extra)]
        wanted = set(study.config.baseline or ())
        assert any(wanted <= set(line.overrides) for line in lines), name


@pytest.mark.parametrize("name", [name for name in NAMES if GROUP[name] == EXPERIMENTS])
def test_an_experiment_has_a_page_with_its_command(name):
    page = (CONF.parent / "docs" / "studies" / f"{name}.md").read_text(encoding="utf-8")
    assert f"experiment={name}" in page
    assert "Measured" in page


def test_a_sweep_and_an_experiment_exclude_each_other():
    with pytest.raises(UserError, match="are two sweeps: give one of them"):
        sweep_request([f"{STUDIES}=smoke", f"{EXPERIMENTS}=page_size"])
    assert sweep_request([f"{EXPERIMENTS}=page_size"]).group == EXPERIMENTS


def test_the_search_is_smaller_than_its_space():
    study = load_study("draft_shape", [])
    assert combinations(axes_of(study, [])) == 245
    assert study.config.trials is not None
    assert study.config.trials < 245
