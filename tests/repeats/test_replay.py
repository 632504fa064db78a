"""Replays of real runs of a model without arithmetic: identical, from the folder alone, anywhere."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.compose import compose
from engine.errors import UserError
from engine.provenance import config_hash
from engine.replay.cli import main as replay_main
from engine.replay.outputs import compare_outputs
from engine.snapshot import Snapshot, changed_keys, new_keys, overlay, recompose
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload.limit=2"],
        ["workload.limit=2", "sampling=creative"],  # a fresh seed, which the folder knows
        ["prompt=It's ${x}, isn't it? {1e3}"],
        ["prompt=null"],
        ["workload=random", "workload.count=2", "workload.input_len=5", "task=bench", "task.repeats=1"],
        ["workload.limit=1", "task=verify"],
        ["workload.limit=2", "sampling.n=2", "sampling=balanced", "overlap=none"],
    ],
)
def test_a_replay_is_identical(run: Any, again: Any, overrides: list[str]) -> None:
    code, out, report = again(run(*overrides))
    assert code == EXIT_OK
    assert report["identical"]
    assert report["answers"] > 0
    assert out.startswith("identical")


def test_standard_input_is_in_the_folder(run: Any, again: Any) -> None:
    code, _, report = again(run("prompt=-", stdin="typed\ntext\n"))
    assert (code, report["identical"], report["answers"]) == (EXIT_OK, True, 1)


def test_a_chat_is_typed_again(run: Any, again: Any) -> None:
    code, _, report = again(run("task=chat", "sampling=creative", stdin="a\nb\n/reset\nc\n"))
    assert (code, report["identical"], report["answers"]) == (EXIT_OK, True, 3)


@pytest.mark.parametrize("change", ["gone", "edited"])
def test_prompt_files_may_change_or_go(run: Any, again: Any, tmp_path: Path, change: str) -> None:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "w.txt"
    file.write_text("one\ntwo\n")
    folder = run("workload=file", "workload.path=w.txt")
    file.write_text("three\n") if change == "edited" else file.unlink()
    code, _, report = again(folder)
    assert (code, report["identical"], report["answers"]) == (EXIT_OK, True, 2)


def test_a_moved_folder_replays_and_so_does_a_replay(run: Any, again: Any, tmp_path: Path) -> None:
    folder = run("workload.limit=1", "sampling=creative")
    moved = tmp_path / "moved"
    shutil.move(folder, moved)
    code, out, _ = again(moved)
    assert code == EXIT_OK
    assert again(Path(out.splitlines()[-1]))[0] == EXIT_OK


@pytest.mark.parametrize("extra", ["seed=12345", "sampling.max_tokens=3", "model.vocab=300"])
def test_an_override_that_matters_is_a_difference(run: Any, again: Any, extra: str) -> None:
    folder = run("workload.limit=2", "seed=1", "sampling=creative")
    code, out, report = again(folder, extra)
    assert (code, report["identical"]) == (EXIT_DIFFERENT, False)
    assert extra.partition("=")[0] in report["settings"]
    assert out.startswith("DIFFERENT")


@pytest.mark.parametrize(
    "extra", ["overlap=none", "cache=none", "cache.page_size=1", "scheduler.max_running=1"]
)
def test_an_override_that_does_not_matter_is_identical(run: Any, again: Any, extra: str) -> None:
    code, _, report = again(run("workload.limit=2", "sampling=creative"), extra)
    assert (code, report["identical"]) == (EXIT_OK, True)
    assert any(key.startswith(extra.partition("=")[0]) for key in report["settings"])
    assert extra.partition("=")[0] in report["courses"][0]["parted"], "such a run makes other batches"


def test_json_is_one_object(run: Any, again: Any) -> None:
    code, out, _ = again(run("workload.limit=1"), "task.format=json")
    document = json.loads(out)
    assert (code, document["identical"], Path(document["run"]).is_dir()) == (EXIT_OK, True, True)


def test_changed_versions_are_named(run: Any, again: Any) -> None:
    folder = run("workload.limit=1")
    facts = json.loads((folder / "run.json").read_text())
    facts["versions"]["torch"] = "0.1"
    facts["model_files"] = {"a.b/c.gguf": "old"}
    (folder / "run.json").write_text(json.dumps(facts))
    code, out, report = again(folder)
    assert code == EXIT_OK
    assert report["changed"]["versions.torch"][0] == "0.1"
    assert report["changed"]["model_files.a.b/c.gguf"] == ["old", None]
    assert "versions.torch: 0.1 -> " in out


@pytest.mark.parametrize("damage", ["missing", "no outputs", "edited", "unknown option"])
def test_what_cannot_be_replayed_is_one_sentence(
    run: Any, again: Any, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    folder = run("workload.limit=1")
    if damage == "missing":
        shutil.rmtree(folder)
    elif damage == "no outputs":
        (folder / "outputs.jsonl").unlink()
    elif damage == "edited":
        file = folder / ".hydra" / "config.yaml"
        file.write_text(file.read_text().replace("max_tokens: 6", "max_tokens: 5"))
    extra = ["sampling.nope=1"] if damage == "unknown option" else []
    assert replay_main([str(folder), *extra]) == EXIT_DIFFERENT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert len(captured.err.strip().splitlines()) == 1


def test_a_snapshot_has_the_same_config_hash_types_and_resolved_values(run: Any) -> None:
    """Field report H5."""
    folder = run("workload.limit=1", "seed=4", "sampling.logit_bias={7: 1.5}", "sampling.stop=[a, '1e3']")
    saved = Snapshot.read(folder)
    config = dict(recompose(saved, []).resolved.cfg)
    assert config_hash(config) == saved.facts["config_hash"]
    assert changed_keys(compose(saved.overrides).cfg, saved.config) == []
    assert config["sampling"]["stop"] == ["a", "1e3"]
    assert config["sampling"]["logit_bias"] == {7: 1.5}
    assert "${" not in yaml.safe_dump(config)


def test_saved_values_win_over_new_defaults(run: Any) -> None:
    """Field report H5: a default that has changed since must not change the replay."""
    folder = run("workload.limit=1", "seed=4")
    saved = Snapshot.read(folder)
    older = {**saved.config, "sampling": {**saved.config["sampling"], "min_tokens": 2}}
    old = Snapshot(folder, older, saved.overrides, saved.facts)
    config = recompose(old, ["sampling.max_tokens=3"]).config
    assert (config["sampling"]["min_tokens"], config["sampling"]["max_tokens"]) == (2, 3)
    said = recompose(old, ["sampling.min_tokens=0"])
    assert said.config["sampling"]["min_tokens"] == 0, "who names a value means it, though it is the default"
    assert said.changed == ("sampling.min_tokens",)


def test_an_option_that_is_gone_is_named(run: Any) -> None:
    folder = run("workload.limit=1")
    saved = Snapshot.read(folder)
    older = {**saved.config, "cache": {**saved.config["cache"], "colour": 2}}
    with pytest.raises(UserError, match="colour"):
        recompose(Snapshot(folder, older, saved.overrides, saved.facts), [])


def test_overlay() -> None:
    part = {"_target_": "A", "x": 1, "y": 2}
    saved = {"part": {**part, "x": 5}, "n": 1, "gone": 3}
    before = {"part": part, "n": 2, "new": 7}
    assert overlay(saved, before, before) == {"part": {**part, "x": 5}, "n": 1, "gone": 3, "new": 7}
    assert overlay(saved, before, {**before, "part": {**part, "y": 9}})["part"] == {**part, "x": 5, "y": 9}
    other = {"_target_": "B", "z": 1}
    assert overlay(saved, before, {**before, "part": other})["part"] == other
    assert overlay(saved, before, {**before, "n": 4})["n"] == 4


def test_new_keys() -> None:
    assert new_keys({"a": 1, "b": {"c": 1}}, {"a": 2, "b": {"c": 2, "d": 3}, "e": {"f": 1}}) == ["b.d", "e"]
    assert new_keys({"part": {"_target_": "A"}}, {"part": {"_target_": "B", "x": 1}}) == []


def test_changed_keys() -> None:
    assert changed_keys({"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"c": 3}, "e": 0}) == [
        "b.c",
        "b.d",
        "e",
    ]


def sample(ids: list[int], finish: str = "stop") -> dict[str, Any]:
    return {"token_ids": ids, "finish_reason": finish}


@pytest.mark.parametrize(
    ("old", "new", "position"),
    [
        (sample([1, 2]), sample([1, 2]), None),
        (sample([1, 2]), sample([1, 3]), 1),
        (sample([1, 2]), sample([1]), 1),
        (sample([1, 2]), sample([1, 2], "length"), 2),
        (sample([1], "cancelled"), sample([1, 2]), None),
        (sample([9], "cancelled"), sample([1, 2]), 0),
        (sample([1]), None, 0),
        (None, sample([1]), 0),
    ],
)
def test_differences(old: Any, new: Any, position: int | None) -> None:
    key = ("", 3, 1, 0)
    found = compare_outputs({} if old is None else {key: old}, {} if new is None else {key: new})
    assert [(d["request"], d["turn"], d["position"]) for d in found.differences] == (
        [] if position is None else [(3, 1, position)]
    )


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert replay_main(["--help"]) == EXIT_OK
    assert "RUN_DIR" in capsys.readouterr().out
    assert replay_main([]) == EXIT_DIFFERENT
