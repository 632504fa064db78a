"""What was automatic is, in a replay, as it came out; unless it was set anew, or this machine cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine import pins
from engine.compose import compose
from engine.pins import absolute_paths, is_path, pinned
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK

FACTS: dict[str, Any] = {
    "seed": 7,
    "threads": 3,
    "device": "cuda:0",
    "dtype": "bfloat16",
    "kv_tokens": 4096,
    "max_context": 2048,
    "cwd": "/nowhere",
    "measured": {"step_costs": "step_costs.json", "kernels": "kernels.json"},
}


def made(tmp_path: Path, *changed: str, gpus: int | None = 1, **facts: Any) -> dict[str, Any]:
    config = dict(compose(["model=tiny"]).cfg)
    return pinned(tmp_path, {**FACTS, **facts}, config, changed)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "count_gpus", lambda: 1)


def test_everything_that_was_automatic(tmp_path: Path) -> None:
    for name in ("step_costs", "kernels"):
        (tmp_path / f"{name}.json").write_text("{}")
    found = made(tmp_path)
    assert (found["seed"], found["threads"], found["device"]) == (7, 3, "cuda:0")
    assert found["model"]["dtype"] == "bfloat16"
    assert (found["cache"]["tokens"], found["cache"]["max_context"]) == (4096, 2048)
    for name in ("step_costs", "kernels"):
        assert found[name] == str(tmp_path / f"{name}.json"), "field report R4: choices are pinned"


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        (("seed",), {"seed": None}),
        (("threads",), {"threads": None}),
        (("device",), {"device": "auto", "dtype": "auto", "tokens": "auto"}),
        (("attention._target_",), {"dtype": "auto", "tokens": 4096}),
        (("model.path",), {"dtype": "auto", "tokens": "auto", "max_context": "auto"}),
        (("scheduler.max_running",), {"tokens": "auto", "dtype": "bfloat16"}),
        (("cache.page_size",), {"tokens": "auto", "max_context": "auto"}),
        (("sampling.top_p",), {"tokens": 4096, "seed": 7, "threads": 3, "device": "cuda:0"}),
    ],
)
def test_what_depends_on_a_new_setting_is_automatic_again(
    tmp_path: Path, changed: tuple[str, ...], kept: dict[str, Any]
) -> None:
    found = made(tmp_path, *changed)
    flat = {**found, **found["cache"], "dtype": found["model"]["dtype"]}
    assert {name: flat[name] for name in kept} == kept


def test_a_machine_without_such_a_device_takes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "count_gpus", lambda: 0)
    found = made(tmp_path)
    assert (found["device"], found["model"]["dtype"]) == ("auto", "auto")
    assert made(tmp_path, device="cpu", dtype="float32")["device"] == "cpu"


def test_what_an_older_run_did_not_keep_stays_automatic(tmp_path: Path) -> None:
    config = dict(compose(["model=tiny"]).cfg)
    assert pinned(tmp_path, {}, config, ()) == config


def test_a_value_that_was_given_is_given_again(tmp_path: Path) -> None:
    config = dict(compose(["model=tiny", "cache.tokens=512", "threads=1", "device=cpu"]).cfg)
    found = pinned(tmp_path, FACTS, config, ())
    assert (found["cache"]["tokens"], found["threads"], found["device"]) == (512, 1, "cpu")
    assert found["cache"]["max_context"] == 2048


def test_paths(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    config = {"spec": {"corpus": ["a", "b"], "draft": "a"}, "model": {"path": "owner/name"}, "prompt": "a"}
    every = ["spec.corpus", "spec.draft", "model.path", "prompt", "step_costs"]
    found = absolute_paths({**config, "step_costs": "cached"}, str(tmp_path), every)
    assert found["spec"] == {
        "corpus": [str(tmp_path / "a"), str(tmp_path / "b")],
        "draft": str(tmp_path / "a"),
    }
    assert (found["model"]["path"], found["prompt"], found["step_costs"]) == ("owner/name", "a", "cached")
    assert [key for key in every if is_path(key)] == ["spec.corpus", "spec.draft", "model.path", "step_costs"]


def test_threads_are_those_of_the_run(run: Any, again: Any) -> None:
    """threads=null is torch's choice, and another on another machine: the number is kept and used again."""
    folder = run("workload.limit=1", "threads=1", base=("model=fake", "sampling.max_tokens=6"))
    facts = json.loads((folder / "run.json").read_text())
    assert facts["threads"] == 1
    code, _, report = again(folder)
    assert (code, report["changed"]) == (EXIT_OK, {})
    code, out, _ = again(folder, "threads=2")
    assert code in (EXIT_OK, EXIT_DIFFERENT)
    assert "changed: threads: 1 -> 2" in out
