"""The yaml options of scheduler and cache build their parts, with the values that the code has by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.build import make_config, target_class
from engine.cache.base import PrefixCache
from engine.errors import UserError
from engine.policy import Policy

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted([*CONF.glob("scheduler/*.yaml"), *CONF.glob("cache/*.yaml")])


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_yaml_equals_the_defaults(path: Path) -> None:
    node = load(path)
    cls = target_class(node["_target_"])
    config = make_config(cls, node, path.parent.name)
    assert config == cls.Config(), "yaml and defaults disagree"  # type: ignore[attr-defined]
    assert set(node) - {"_target_"} == set(vars(config)), "an option is missing from the yaml"
    assert isinstance(cls(config), Policy | PrefixCache)


def test_every_option_is_there() -> None:
    assert [p.stem for p in FILES] == ["none", "radix", "fcfs", "longest_prefix"]


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("cache/radix", "page_size", -3),
        ("cache/radix", "page_size", "abc"),
        ("cache/none", "tokens", 0),
        ("cache/radix", "tokens", "all"),
        ("cache/radix", "max_context", 1),
        ("scheduler/fcfs", "max_running", 0),
        ("scheduler/fcfs", "chunk_tokens", 0),
        ("scheduler/fcfs", "aging", 3),
        ("scheduler/longest_prefix", "aging", 0),
        ("scheduler/longest_prefix", "headroom", -1),
    ],
)
def test_wrong_values_are_named(file: str, key: str, value: object) -> None:
    node = load(CONF / f"{file}.yaml") | {key: value}
    with pytest.raises(UserError, match=f"{file.split('/')[0]}.{key}"):
        make_config(target_class(node["_target_"]), node, file.split("/")[0])
