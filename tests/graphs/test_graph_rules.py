"""Rules and explain know graphs: what is refused, with the way out, and what would be captured."""

from __future__ import annotations

import pytest
from support.static_attention import static_config

from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.explain_text import render
from engine.facts import gather
from engine.rules import check, verdicts
from engine.rules.base import NOT_APPLICABLE, OK, VIOLATED

BASE = ("model=tiny", "model.dtype=float32", "device=cpu")


def verdict(rule: str, *overrides: str) -> tuple[str, str]:
    found = next(v for v in verdicts(gather(compose((*BASE, *overrides)))) if v.rule == rule)
    return found.verdict, found.reason


@pytest.mark.parametrize(
    ("rule", "overrides", "expected", "words"),
    [
        ("step graph", ("attention=triton", "graph=step"), OK, ["device"]),
        (
            "step graph",
            ("attention=torch", "graph=step"),
            VIOLATED,
            ["=step", "=forward", "triton"],
        ),
        ("step graph", ("attention=torch", "graph=forward"), NOT_APPLICABLE, []),
        (
            "step graph",
            ("attention=triton", "graph=step", "spec=eagle3", "attention@spec.draft_attention=torch"),
            VIOLATED,
            ["draft attention"],
        ),
        ("forward graph", ("attention=torch", "graph=forward"), OK, ["captured"]),
        ("forward graph", ("attention=triton", "graph=forward"), OK, ["captured"]),
        (
            "forward graph",
            ("attention=torch", "graph=forward", "spec=eagle3", "spec.load=dummy"),
            OK,
            ["draft runs eagerly"],
        ),
        ("forward graph", ("attention=triton", "graph=step"), NOT_APPLICABLE, []),
        ("graph sizes", (), NOT_APPLICABLE, []),
        ("graph sizes", ("graph=forward", "scheduler.max_running=6"), OK, ["1, 2, 4, 6"]),
        ("graph sizes", ("graph=forward", "graph.sizes=[2,8]"), OK, ["2, 8", "more than 8"]),
        (
            "graph sizes",
            ("graph=forward", "graph.sizes=[2,99]"),
            VIOLATED,
            ["99", "scheduler.max_running=64", "use graph.sizes=auto"],
        ),
        ("own checks", ("graph=forward", "graph.sizes=[]"), VIOLATED, ["captures nothing", "graph=none"]),
        ("own checks", ("graph=forward", "graph.sizes=[0]"), VIOLATED, ["below 1"]),
        ("own checks", ("graph=forward", "graph.sizes=some"), VIOLATED, ["graph.sizes=some"]),
    ],
)
def test_rules(rule: str, overrides: tuple[str, ...], expected: str, words: list[str]) -> None:
    found, reason = verdict(rule, *overrides)
    assert found == expected, reason
    for word in words:
        assert word in reason


def test_attention_that_cannot_be_planned_from_outside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from support.static_attention import HostPlanned

    check(static_config("graph=forward", attention="HostPlanned"))
    monkeypatch.setattr(HostPlanned, "plans_outside", False)
    with pytest.raises(UserError, match=r"cannot be; use graph=none"):
        check(static_config("graph=forward", attention="HostPlanned"))
    with pytest.raises(UserError, match=r"(?s)HostPlanned.*use graph=none"):
        check(static_config("graph=step", attention="HostPlanned"))


def test_a_step_graph_gives_no_exact_lengths() -> None:
    with pytest.raises(
        UserError, match=r"no exact lengths to target attention .HostPlanned.; use graph=forward"
    ):
        check(static_config("graph=step", attention="HostPlanned"))


def test_explain_says_what_is_captured() -> None:
    found = explain(compose([*BASE, "graph=step", "attention=triton", "graph.sizes=[1,4]"]))
    assert found.accepted
    step = found.as_dict()["step"]
    assert step["graph"] == ["propose", "forward", "accept", "commit", "observe", "results"]
    assert step["sizes"] == [1, 4]
    text = render(found)
    assert "propose, forward, accept" in text
    assert "batches of 1, 4" in text
    none = explain(compose([*BASE]))
    assert none.as_dict()["step"]["sizes"] == none.as_dict()["step"]["graph"] == []
    assert "captured at start" not in render(none)


def test_the_memory_plan_has_a_line_for_graphs_where_they_take_device_memory() -> None:
    def line(*overrides: str) -> int:
        plan = explain(compose(("model=tiny", *overrides))).plan
        assert plan is not None
        return sum(item.bytes for item in plan.items if item.name == "decode graphs")

    on_gpu = ("device=cuda", "graph=step", "attention=triton")
    assert line("device=cuda", "attention=triton") == line("device=cpu", "graph=step") == 0
    one, four = line(*on_gpu, "graph.sizes=[1]"), line(*on_gpu, "graph.sizes=[1,2,4,8]")
    assert 0 < one < four < 400 << 20
    assert line(*on_gpu, "graph.sizes=[1]", "spec=eagle3", "spec.load=dummy") > one
