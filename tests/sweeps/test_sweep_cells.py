"""Cells of a sweep before anything starts: which there are, who they are, what is said of impossible ones."""

from __future__ import annotations

import pytest

from engine.compose import compose
from engine.errors import UserError
from engine.sweeps.axes import axes_of, extra_lines, lines_of
from engine.sweeps.cells import Cell, identity, judged, require_one
from engine.sweeps.manifest import cells_of, manifest_of
from engine.sweeps.states import OK, REJECTED
from engine.sweeps.study import Study, load_study

EAGLE = ("model=tiny", "device=cpu", "spec.load=dummy")


def study(*overrides: str, extra: tuple[tuple[str, ...], ...] = ()) -> Study:
    return Study(Study.Config(overrides=overrides, extra=extra))


def cells(*overrides: str, of: Study | None = None) -> tuple[Cell, ...]:
    chosen = of or study()
    axes = axes_of(chosen, overrides)
    return judged([*lines_of(axes), *extra_lines(axes, chosen.config.extra)])


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        require_one(cells(*overrides))
    return str(caught.value)


def test_every_combination_is_a_cell_in_the_order_of_the_command_line():
    found = cells("model=tiny", "overlap=none,future", "cache.page_size=8,16")
    assert [dict(cell.varied) for cell in found] == [
        {"overlap": "none", "cache.page_size": 8},
        {"overlap": "none", "cache.page_size": 16},
        {"overlap": "future", "cache.page_size": 8},
        {"overlap": "future", "cache.page_size": 16},
    ]
    assert {cell.verdict for cell in found} == {OK}
    assert found[2].overrides == ("model=tiny", "overlap=future", "cache.page_size=8")
    assert found[2].choices["overlap"] == "future"
    assert found[2].title == "overlap=future cache.page_size=8"


def test_ranges_lists_and_texts_are_values():
    assert [c.varied["cache.page_size"] for c in cells("model=tiny", "cache.page_size=range(4,10,2)")] == [
        4,
        6,
        8,
    ]
    stops = cells("model=tiny", "sampling.stop=[x],[y,z]")
    assert [c.varied["sampling.stop"] for c in stops] == [["x"], ["y", "z"]]
    (one,) = cells("model=tiny", "prompt=a, b and ${c}")
    assert compose(one.overrides).cfg["prompt"] == "a, b and ${c}"


def test_a_key_that_exists_for_some_cells_only_is_a_rejected_row_in_the_others():
    found = cells("device=cpu", "spec=ngram,eagle3", "spec.num_steps=2,3")
    assert [(cell.choices["spec"], cell.varied["spec.num_steps"], cell.verdict) for cell in found] == [
        ("ngram", 2, REJECTED),
        ("ngram", 3, REJECTED),
        ("eagle3", 2, OK),
        ("eagle3", 3, OK),
    ]
    assert "spec has no option num_steps" in str(found[0].reason)
    assert found[2].reason is None


def test_what_the_rules_forbid_is_a_rejected_row_with_every_reason():
    found = cells("model=tiny", "device=cpu", "cache.page_size=16,0", "sampling.max_tokens=9,1000000")
    assert [cell.verdict for cell in found] == [OK, REJECTED, REJECTED, REJECTED]
    assert "sampling.max_tokens=1000000 leaves no room" in str(found[1].reason)
    assert "cache.page_size=0 has to be at least 1" in str(found[2].reason)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["attention=trion,torch"], ["attention has no option trion", "torch", "did you mean triton?"]),
        (["atention=torch,triton"], ["did you mean attention?"]),
        (["+foo=1,2"], ["+foo=1,2", "there is no foo"]),
        (["spec=none,ngram", "+spec.num_stpes=3"], ["spec has no option num_stpes"]),
        (["spec=ngram,eagle3", "+spec.num_stpes=3"], ["did you mean num_steps?"]),
        (["cache.page_size=-1,0"], ["cache.page_size=-1", "cache.page_size=0"]),
        (["overlap=none", "overlap=future"], ["overlap is chosen twice"]),
        (["sampling.stop=[a,b"], ["cannot be read"]),
        (["sampling.temperature=interval(0,1)"], ["an interval"]),
        (["sampling.max_tokens=range(5,5)"], ["sampling.max_tokens=range(5,5)", "no values"]),
        (["model=tiny", "sampling.max_tokens=1000000,2000000"], ["1000000", "2000000"]),
    ],
)
def test_what_is_wrong_in_all_cells_is_refused_with_the_choices(overrides, words):
    message = refusal(*overrides)
    for word in words:
        assert word in message


def test_very_many_reasons_are_cut_and_counted():
    message = refusal("model=tiny", f"cache.page_size={','.join(str(-n) for n in range(14))}")
    assert len(message.splitlines()) == 13
    assert message.endswith("and 2 more like these")


def test_cells_that_compose_to_the_same_config_run_once():
    found = cells("model=tiny", "scheduler.max_running=64,32,64", "spec=none")
    assert [cell.varied["scheduler.max_running"] for cell in found] == [64, 32]
    assert found[0].duplicates == (("model=tiny", "scheduler.max_running=64", "spec=none"),)


def test_identity_is_the_resolved_config_not_how_it_was_written():
    (said,), (default,) = cells("model=tiny", "overlap=future"), cells("model=tiny")
    assert said.id == default.id
    assert len(said.id) == 12
    (other,) = cells("model=tiny", "overlap=none")
    assert other.id != said.id


def test_output_paths_are_no_part_of_the_identity():
    one, other = ({"task": {"_target_": "t", "output": where, "n": 1}, "seed": None} for where in "ab")
    assert identity(one) == identity(other)
    assert identity(one) != identity({**one, "task": {**one["task"], "n": 2}})
    assert one["task"]["output"] == "a", "the config itself is left alone"


def test_the_command_line_narrows_a_study():
    own = study("model=tiny", "overlap=none,future", "cache.page_size=8,16", "task=generate", "task.show=0")
    narrowed = cells("overlap=none", "cache.page_size=4,8", "seed=3", of=own)
    assert [cell.overrides for cell in narrowed] == [
        ("model=tiny", "overlap=none", f"cache.page_size={size}", "task=generate", "task.show=0", "seed=3")
        for size in (4, 8)
    ]


def test_an_exchanged_option_takes_the_studys_values_of_the_former_one_along():
    own = study("model=tiny", "device=cpu", "task=generate,bench", "task.format=json", "overlap=none")
    (chat,) = cells("task=chat", of=own)
    assert chat.overrides == ("model=tiny", "device=cpu", "task=chat", "overlap=none")
    (bench,) = cells("task=bench", of=own)
    assert "task.format=json" in bench.overrides


def test_extra_command_lines_stand_beside_what_does_not_vary():
    own = study("model=tiny", "overlap=none,future", "seed=1", extra=(("cache=none,radix", "seed=2"),))
    found = cells(of=own)
    assert [cell.overrides for cell in found[2:]] == [
        ("model=tiny", "seed=2", "cache=none"),
        ("model=tiny", "seed=2", "cache=radix"),
    ]
    assert found[0].varied["cache"] == "radix", "a group that only some lines choose has its option elsewhere"


def test_a_manifest_gives_its_cells_back():
    found = cells("model=tiny", "device=cpu", "cache.page_size=16,0,16")
    document = manifest_of(["cache.page_size=16,0,16"], study(), axes_of(study(), []), found)
    assert cells_of(document) == found
    assert document["command"][-1] == "cache.page_size=16,0,16"
    with pytest.raises(UserError, match="another version"):
        cells_of({**document, "version": 99})
    with pytest.raises(UserError, match="damaged"):
        cells_of({**document, "cells": [{"id": 1}]})


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("speeculation", [], ["sweep=speeculation", "there is no such study"]),
        (None, ["sweep.timout=3"], ["sweep.timout", "did you mean timeout?"]),
        (None, ["sweep.timeout=0"], ["sweep.timeout=0", "more than 0"]),
        (None, ["sweep.fail_fast=perhaps"], ["true or false"]),
        (None, ["sweep.timeout=3,4"], ["one value"]),
        (None, ["sweep.figure=[a"], ["cannot be read"]),
    ],
)
def test_a_wrong_study_or_setting_is_one_sentence(name, settings, words):
    with pytest.raises(UserError) as caught:
        load_study(name, settings)
    for word in words:
        assert word in str(caught.value)


def test_settings_on_the_command_line_win():
    config = load_study("smoke", ["sweep.timeout=7", "sweep.better=lower"]).config
    assert (config.timeout, config.better) == (7.0, "lower")
    assert config.baseline == ("spec=none",)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("task=chat", "spec=none,ngram"), "task=chat reads its turns from standard input, which a job"),
        (("prompt=-", "spec=none,ngram"), "prompt=- reads standard input, which a job of a sweep"),
    ],
)
def test_nothing_that_waits_for_standard_input_is_started(lines: tuple[str, ...], words: str) -> None:
    assert words in refusal("model=tiny", "device=cpu", *lines)


def test_a_chat_of_one_turn_needs_no_standard_input() -> None:
    assert [cell.verdict for cell in cells("model=tiny", "device=cpu", "task=chat", "prompt=hi")] == [OK]
