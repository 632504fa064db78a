"""Typed merge of a plain node over a part's Config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest

from engine.build import choice, config_problems, make_config, number, parts_of, target_class
from engine.errors import UserError


class Part:
    @dataclass(frozen=True)
    class Config:
        count: int = number(3, ge=1, le=9)
        rate: float = number(0.5, gt=0, lt=2)
        maybe: float | None = number(None, gt=0)
        kind: str = choice("fast", ("fast", "slow"))
        size: int | Literal["auto"] = number("auto", ge=1)
        on: bool = False
        names: tuple[str, ...] = ()
        pair: tuple[int, int] = (0, 0)
        stop: tuple[str, ...] | str = ()
        bias: Mapping[int, float] = field(default_factory=dict)


class Bare:
    pass


class Needy:
    @dataclass(frozen=True)
    class Config:
        path: str


@pytest.mark.parametrize(
    ("node", "name", "value"),
    [
        ({"count": 9}, "count", 9),
        ({"rate": 1}, "rate", 1.0),
        ({"maybe": None}, "maybe", None),
        ({"maybe": 3}, "maybe", 3.0),
        ({"kind": "slow"}, "kind", "slow"),
        ({"size": "auto"}, "size", "auto"),
        ({"size": 16}, "size", 16),
        ({"on": True}, "on", True),
        ({"names": ["a", "b"]}, "names", ("a", "b")),
        ({"pair": [1, 2]}, "pair", (1, 2)),
        ({"stop": "end"}, "stop", "end"),
        ({"stop": ["x"]}, "stop", ("x",)),
        ({"bias": {7: -100}}, "bias", {7: -100.0}),
    ],
)
def test_value_is_taken_in_the_declared_type(node, name, value):
    config = make_config(Part, node, "part")
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value)


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"count": 0}, ["part.count=0", "at least 1", "at most 9"]),
        ({"count": 10}, ["part.count=10"]),
        ({"count": True}, ["part.count=true", "an integer"]),
        ({"count": 2.5}, ["part.count=2.5", "an integer"]),
        ({"count": "3"}, ["part.count=3", "an integer"]),
        ({"count": None}, ["part.count=null", "an integer"]),
        ({"rate": 0}, ["part.rate=0.0", "more than 0"]),
        ({"rate": float("nan")}, ["part.rate=nan"]),
        ({"rate": float("inf")}, ["part.rate=inf", "less than 2"]),
        ({"maybe": -1}, ["part.maybe=-1", "more than 0"]),
        ({"kind": "fasst"}, ["part.kind=fasst", "fast, slow", "did you mean fast?"]),
        ({"size": "aut"}, ["part.size=aut", "an integer or auto"]),
        ({"size": 0}, ["part.size=0", "at least 1"]),
        ({"on": "yes"}, ["part.on=yes", "true or false"]),
        ({"on": 1}, ["part.on=1", "true or false"]),
        ({"names": "abc"}, ["part.names=abc", "a list"]),
        ({"names": ["a", 2]}, ["part.names[1]=2", "text"]),
        ({"pair": [1]}, ["part.pair", "a list of 2"]),
        ({"bias": {"x": 1}}, ["part.bias", "an integer"]),
        ({"bias": 3}, ["part.bias=3", "a mapping"]),
        ({"cuont": 3}, ["part.cuont", "no option cuont", "did you mean count?"]),
    ],
)
def test_wrong_value_is_one_clause_with_key_and_value(node, words):
    problems = config_problems(Part, node, "part")
    assert len(problems) == 1
    for word in words:
        assert word in problems[0]


def test_all_problems_come_together():
    node = {"count": 0, "kind": "x", "typo": 1, "on": "no"}
    with pytest.raises(UserError) as caught:
        make_config(Part, node, "part")
    assert len(str(caught.value).splitlines()) == 4


def test_target_and_nested_parts_are_left_out():
    child = {"_target_": "backends.x.Y", "n": 1}
    node = {"_target_": "engine.x.Part", "count": 2, "child": child}
    assert make_config(Part, node, "part").count == 2
    assert parts_of(node) == {"child": child}
    assert config_problems(Part, {"child": {"n": 1}}, "part") != []


def test_class_without_config_has_no_options():
    assert config_problems(Bare, {"_target_": "engine.x.Bare"}, "bare") == []
    assert "no options" in config_problems(Bare, {"a": 1}, "bare")[0]


def test_field_without_default_has_to_be_given():
    assert config_problems(Needy, {}, "needy") == ["needy.path has to be given"]
    assert make_config(Needy, {"path": "p"}, "needy").path == "p"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("os.system", "only classes of"),
        ("subprocess.Popen", "only classes of"),
        ("engine.build.Path", "no class Path"),
        ("engine.build.make_config", "no class make_config"),  # a function
        ("engine.provenance.Path", "no class Path"),  # a foreign class that a module of ours imports
        ("engine.no_such_module.X", "no module engine.no_such_module"),
        ("engine", "not a class path"),
        (None, "not a class path"),
        ("engine..X", "no "),
    ],
)
def test_target_outside_the_allow_list_is_refused(path, words):
    with pytest.raises(UserError, match=words):
        target_class(path)


def test_missing_package_of_a_part_is_named(monkeypatch, tmp_path):
    folder = tmp_path / "kernels_extra"
    folder.mkdir()
    (folder / "needs_it.py").write_text("import a_package_nobody_has\n\nclass Part: ...\n")
    import backends

    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(folder)])
    with pytest.raises(UserError, match="pip install a_package_nobody_has"):
        target_class("backends.needs_it.Part")
