"""Snapshots of older versions: they load, or one sentence says which key changed and which code knew it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.compose import compose
from engine.errors import UserError
from engine.provenance import config_hash
from engine.runs import dump_yaml
from engine.snapshot import Snapshot, changed_keys, new_keys, recompose
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK

OLDER = Path(__file__).parent / "older"  # folders as version 0.1.0 at commit c23746d left them
COMMIT = "c23746df4747"
Edit = Callable[[dict[str, Any]], None]


def older(tmp_path: Path, name: str, edit: Edit | None = None, *overrides: str) -> Path:
    """A copy of an older folder whose config is edited and hashed as if it had been so."""
    folder = tmp_path / name
    shutil.copytree(OLDER / name, folder)
    config = yaml.safe_load((folder / ".hydra/config.yaml").read_text())
    if edit is not None:
        edit(config)
    (folder / ".hydra/config.yaml").write_text(dump_yaml(config))
    lines = yaml.safe_load((folder / ".hydra/overrides.yaml").read_text())
    (folder / ".hydra/overrides.yaml").write_text(dump_yaml([*lines, *overrides]))
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "config_hash": config_hash(config)}))
    return folder


def test_an_older_run_is_replayed(again: Any, tmp_path: Path) -> None:
    code, out, report = again(older(tmp_path, "plain"))
    assert (code, report["identical"], report["answers"], report["tokens"]) == (EXIT_OK, True, 2, 24)
    assert "batches: not recorded" in out
    assert f"git.commit: {COMMIT}" in out
    assert {"arrivals", "record"} <= set(report["new_settings"])


def test_its_values_are_kept_and_new_settings_are_todays(tmp_path: Path) -> None:
    saved = Snapshot.read(older(tmp_path, "drafts"))
    made = recompose(saved, [])
    kept = {key: made.resolved.cfg[key] for key in saved.config}
    differing = [key for key in changed_keys(saved.config, kept) if _has(saved.config, key)]
    assert differing == [], "no saved value is lost"
    assert made.config["step_costs"] == str(tmp_path / "drafts" / "step_costs.json")
    assert made.config["seed"] == 1654033264
    assert made.resolved.run_dir.startswith("outputs/"), "the folder that it was given then stays as it is"


def _has(tree: Any, dotted: str) -> bool:
    for name in dotted.split("."):
        if name not in tree:
            return False
        tree = tree[name]
    return True


def _colour(config: dict[str, Any]) -> None:
    config["cache"]["colour"] = 2


def _root(config: dict[str, Any]) -> None:
    config["colour"] = 2


def _target(config: dict[str, Any]) -> None:
    config["attention"]["_target_"] = "backends.gone.GoneAttention"


def _kind(config: dict[str, Any]) -> None:
    config["sampling"]["stop"] = 7


@pytest.mark.parametrize(
    ("edit", "overrides", "named"),
    [
        (_colour, (), "cache.colour: cache has no option colour"),
        (_root, (), "colour: the root has no option colour"),
        (_target, (), "there is no module backends.gone"),
        (_kind, (), "sampling.stop"),
        (None, ("attention=gone",), "attention has no option gone"),
        (None, ("cache.colour=2",), "cache.colour"),
        (None, ("colour=2",), "there is no colour"),
    ],
)
def test_what_is_gone_is_named_with_the_code_that_knew_it(
    tmp_path: Path, edit: Edit | None, overrides: tuple[str, ...], named: str
) -> None:
    folder = older(tmp_path, "plain", edit, *overrides)
    with pytest.raises(UserError) as caught:
        recompose(Snapshot.read(folder), [])
    sentence = str(caught.value)
    assert named in sentence
    assert f"{folder} was saved by syncless 0.1.0 at commit {COMMIT}" in sentence
    assert "\n" not in sentence


def test_a_key_that_is_gone_can_be_replaced(again: Any, tmp_path: Path) -> None:
    """A part of another name is taken whole."""
    folder = older(tmp_path, "plain", _target)
    code, _, report = again(folder, "attention=torch")
    assert (code, report["identical"]) == (EXIT_OK, True)


@pytest.mark.parametrize("key", ["model", "sampling", "cache", "seed", "device", "task", "prompt", "threads"])
def test_a_key_that_is_missing_is_todays_or_named(tmp_path: Path, key: str) -> None:
    """Field report I8: a missing value never becomes an unnoticed null."""
    folder = older(tmp_path, "plain", lambda config: config.pop(key))
    made = recompose(Snapshot.read(folder), [])
    assert key in made.resolved.cfg
    if isinstance(made.resolved.cfg[key], dict):
        assert made.resolved.cfg[key]["_target_"]


@pytest.mark.parametrize("part", ["model", "attention", "task", "workload"])
def test_a_part_without_its_class_is_todays(tmp_path: Path, part: str) -> None:
    saved = Snapshot.read(older(tmp_path, "plain", lambda config: config[part].pop("_target_")))
    made = recompose(saved, [])
    assert made.resolved.cfg[part]["_target_"] == compose(saved.overrides).cfg[part]["_target_"]
    assert f"{part}._target_" in new_keys(saved.config, made.resolved.cfg)


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.replay.cli import main

    assert main([str(older(tmp_path, "plain", _colour))]) == EXIT_DIFFERENT
    assert capsys.readouterr().err.count("\n") == 1


def test_settings_of_an_exchanged_part_are_not_new_ones(run: Any, again: Any) -> None:
    _, out, report = again(run("prompt=Hi", "sampling.max_tokens=2"), "spec=ngram")
    assert report["new_settings"] == []
    assert "set anew: spec.drafts: None -> " in out
