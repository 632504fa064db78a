"""The hint of step graphs: once, on a GPU, with what the rules accept; never where the user has chosen."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from engine import facts, hints
from engine.compose import compose
from engine.devices import DeviceFacts, device_facts
from engine.hints import given_groups, hint_of_launches

BASE = ("model=tiny", "model.dtype=float32")


@pytest.fixture(autouse=True)
def _a_fresh_process() -> Iterator[None]:
    hints._once.cache_clear()
    yield
    hints._once.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one, as far as files tell."""

    def found(asked: str) -> DeviceFacts:
        kind = "cuda" if asked == "auto" else asked.partition(":")[0]
        return DeviceFacts(asked, kind, 0, 1, True)

    monkeypatch.setattr(facts, "device_facts", found)


def said(caplog: pytest.LogCaptureFixture, *overrides: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="syncless"):
        hint_of_launches(compose((*BASE, *overrides)))
    return [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (("attention=triton",), ": graph=step makes a step one launch;"),
        ((), ": attention=triton graph=step makes a step one launch;"),
        (("attention=torch",), ": graph=forward makes the model's pass in it one launch;"),
        (("attention=triton", "spec=ngram"), ": graph=step makes a step one launch;"),
    ],
)
def test_the_hint_names_what_would_be_accepted(
    caplog: pytest.LogCaptureFixture, overrides: tuple[str, ...], advice: str
) -> None:
    (line,) = said(caplog, *overrides)
    assert "launched kernel by kernel (graph=none, the default)" in line
    assert advice in line


@pytest.mark.usefixtures("gpu")
def test_it_is_said_once_a_process(caplog: pytest.LogCaptureFixture) -> None:
    assert len(said(caplog)) == 1
    assert said(caplog) == []


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    "overrides",
    [
        ("graph=none",),
        ("attention=triton", "graph=step"),
        ("graph=forward", "graph.sizes=[1]"),
        ("device=cpu",),
    ],
)
def test_who_has_chosen_hears_nothing(caplog: pytest.LogCaptureFixture, overrides: tuple[str, ...]) -> None:
    assert said(caplog, *overrides) == []


def test_nothing_is_said_on_a_cpu(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.devices.count_gpus", lambda: 0)
    assert device_facts("auto").kind == "cpu"
    assert said(caplog) == []


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("task", "count"), [("generate", 1), ("explain", 0)])
def test_the_command_line_gives_it_before_a_task_that_decodes(
    cli, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, task: str, count: int
) -> None:
    monkeypatch.setattr("engine.cli.execute.run_task", lambda *_: 0)
    with caplog.at_level(logging.WARNING, logger="syncless"):
        cli(*BASE, f"task={task}")
    assert len([r for r in caplog.records if "kernel by kernel" in r.getMessage()]) == count


def test_groups_are_told_from_settings_and_placed_parts() -> None:
    lines = ("graph=step", "attention.split=2", "attention@spec.draft_attention=torch", "prompt=a=b")
    assert given_groups(lines) == {"graph", "attention", "prompt"}
