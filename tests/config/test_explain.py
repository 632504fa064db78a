"""task=explain: the promised keys, the wiring, and violations as part of the answer."""

from __future__ import annotations

import json

import pytest

from engine.batch import HostLens
from engine.build import target_class
from engine.compose import compose
from engine.explain import explain, explain_config
from engine.explain_text import render
from engine.memory import human
from engine.rules import RULES, compose_checked


def test_json_has_what_is_promised_and_nothing_else_is_printed(cli):
    ran = cli("task=explain", "task.format=json", "model=tiny", "device=cpu")
    assert ran.code == 0
    assert ran.err == ""
    answer = ran.json()
    assert answer["needs_cpu_seq_lens"] is False
    assert answer["caused_by"] == []
    roles = {slot["role"]: slot for slot in answer["slots"]}
    assert set(roles) == {"target", "draft", "draft_extend"}
    assert all({"role", "backend", "host_lens"} <= set(slot) for slot in answer["slots"])
    assert roles["draft"]["backend"] is None
    assert roles["draft"]["host_lens"] is None
    declared = target_class(roles["target"]["backend"]).host_lens
    assert roles["target"]["host_lens"] == declared.value
    assert declared is not HostLens.EXACT
    assert [rule["rule"] for rule in answer["rules"]] == [rule.name for rule in RULES]
    assert all(set(rule) == {"rule", "verdict", "reason"} for rule in answer["rules"])
    assert answer["memory"]["total_bytes"] == sum(item["bytes"] for item in answer["memory"]["items"])


def test_violations_are_shown_instead_of_ending_it(cli):
    ran = cli("task=explain", "task.format=json", "model=tiny", "device=cpu", "cache.max_context=9999")
    assert ran.code == cli("model=tiny", "device=cpu", "cache.max_context=9999").code == 1
    answer = ran.json()
    assert answer["accepted"] is False
    verdicts = {rule["rule"]: rule["verdict"] for rule in answer["rules"]}
    assert verdicts["context"] == "violated"
    assert verdicts["sampling"] == "ok"
    read = cli("task=explain", "model=tiny", "device=cpu", "cache.max_context=9999")
    assert "REFUSED: 1 violated" in read.out
    assert read.code == 1


def test_a_name_that_does_not_exist_cannot_be_explained(cli):
    assert cli("task=explain", "attention=nope").code == 1


def test_text_names_every_slot_rule_part_and_memory_item(cli):
    text = cli("task=explain", "model=tiny", "device=cpu").out
    found = explain(compose(["model=tiny", "device=cpu"]))
    words = [rule.name for rule in RULES] + [slot.role for slot in found.facts.slots]
    words += list(found.facts.parts) + [item.name for item in found.plan.items]
    assert [word for word in words if word not in text] == []
    assert "needs_cpu_seq_lens: false" in text
    assert human(found.plan.total) in text
    assert max(len(line) for line in text.splitlines()) <= 110


def test_text_is_plain_unless_color_is_asked_for():
    found = explain(compose(["model=tiny"]))
    assert "\x1b" not in render(found)
    assert "\x1b" in render(found, color=True)


def test_a_config_and_its_overrides_explain_like_the_command_line():
    overrides = ["model=tiny", "cache=none", "device=cpu"]
    resolved = compose_checked(overrides)
    assert explain_config(resolved.cfg, resolved.overrides).as_dict() == explain(resolved).as_dict()


@pytest.mark.parametrize("task", ["generate", "verify", "bench", "chat"])
def test_every_task_can_be_asked_about_through_the_api(task):
    found = explain(compose([f"task={task}", "model=tiny", "device=cpu"]))
    assert found.accepted
    json.dumps(found.as_dict(), allow_nan=False)
