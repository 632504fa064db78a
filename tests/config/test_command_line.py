"""The command line as its user meets it: help, flags, and one message for a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from engine import __version__
from engine.cli.main import readable
from engine.conf_tree import conf_tree
from engine.errors import UserError

TREE = conf_tree()


def test_help_has_one_line_for_every_group_option_value_and_flag(cli):
    ran = cli("--help")
    lines = ran.out.splitlines()
    assert ran.code == 0
    for group, options in TREE.groups.items():
        at = lines.index(f"  {group}")
        body = lines[at + 1 : at + 1 + len(options)]
        for (name, option), line in zip(options.items(), body, strict=True):
            mark = "*" if TREE.defaults.get(group) == name else " "
            assert line.startswith(f"   {mark} {name}")
            assert option.summary in line
    for word in [*TREE.scalars, "--multirun", "--cfg", "--info", "--version", "task=explain"]:
        assert word in ran.out


def test_version(cli):
    assert cli("--version").out == f"syncless {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attention=nope"], ["error: attention=nope", "torch"]),
        (["model.dtyp=bf16"], ["did you mean dtype?"]),
        (["overlap=true"], ["it has future, none"]),
        (["+foo=1"], ["there is no foo"]),
        (["prompt="], ["prompt is empty"]),
        (["model=local", "model.path=/no/such/folder"], ["/no/such/folder"]),
        (["model=local"], ["model.path"]),
        (["workload=file", "workload.path=/no/such"], ["/no/such"]),
        (["model=tiny", "model.dtype=int4"], ["model.dtype=int4", "model.dtype="]),
        (["--cofg", "job"], ["no flag --cofg", "did you mean --cfg?"]),
        (["--cfg", "jab"], ["jab"]),
        (["--cfg", "job", "attention=nope"], ["attention=nope"]),
        (["-m", "overlap=none,nope"], ["overlap has no option nope"]),
        (["-m", "model=tiny", "cache.page_size=0"], ["cache.page_size=0"]),
        (["task=explain", "cache.page_size=0"], ["cache.page_size=0"]),
        (["model=tiny", "attention=nope", "sampling.max_tokens=99999"], ["2 problems", "nope", "max_tokens"]),
        (["prompt=\udcff"], ["not valid UTF-8"]),
    ],
)
def test_a_mistake_is_one_message_on_stderr_and_exit_1(cli, arguments, words):
    ran = cli(*arguments)
    assert ran.code == 1
    assert ran.out == ""
    for word in words:
        assert word in ran.err
    assert "Traceback" not in ran.err
    assert "HYDRA_FULL_ERROR" not in ran.err
    assert not list(Path.cwd().rglob("run.json")), "nothing ran, so no run folder is left"


def test_several_problems_are_a_list():
    assert readable(UserError("one")) == "error: one"
    assert readable(UserError("one\ntwo")).splitlines() == ["error: 2 problems", "  - one", "  - two"]


@pytest.mark.parametrize("choice", ["model=local", "model=fake", "model=tiny"])
def test_a_wrong_model_path_is_one_problem(cli, choice):
    ran = cli(choice, "model.path=absent", "device=cpu")
    assert ran.code == 1
    assert ran.err.startswith("error: model.path=absent")
    assert ran.err.count("absent") == 1


def test_hydras_flags_pass_through(cli):
    shown = cli("--cfg", "job", "-p", "cache", "cache.page_size=4")
    assert yaml.safe_load(shown.out)["page_size"] == 4
    assert "searchpath" not in shown.out
    assert "file://" in cli("--info", "searchpath").out
    assert not list(Path.cwd().iterdir())
