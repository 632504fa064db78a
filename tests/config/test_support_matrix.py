"""Every combination of options is accepted, or refused with a sentence, in under two seconds.

The support matrix is the validator: what is accepted here, the tests of the engine build and run.
"""

from __future__ import annotations

import itertools
import time
from functools import cache

import pytest

from engine.compose import Resolved, compose
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.rules import check

TREE = conf_tree()
MATRIX = ("model", "attention", "spec", "overlap", "tbo", "pcg", "graph", "cache", "scheduler")
CHOICES = {group: [f"{group}={option}" for option in TREE.groups[group]] for group in MATRIX}
WAYS_OUT = ("use ", "set ", "choose ", "give ", "pip ", "needs ")
FOLLOWS = ("attention", "spec")  # a draft's attention follows the target's: these are composed together
PAIRS = [
    pair
    for one, other in itertools.combinations(MATRIX, 2)
    for pair in itertools.product(CHOICES[one], CHOICES[other])
]


def judge(overrides) -> str:
    """ "accepted", or the message."""
    try:
        check(compose(overrides))
    except UserError as error:
        return str(error)
    return "accepted"


@cache
def composed(*overrides: str) -> Resolved:
    return compose([*overrides, "device=cpu"])


def assembled(combination) -> Resolved:
    """The config of a combination, put together from composed nodes: Hydra takes a hundred times as long as
    the rules."""
    chosen = dict(override.split("=") for override in combination)
    base = composed(*(f"{group}={chosen[group]}" for group in FOLLOWS))
    cfg, choices = dict(base.cfg), dict(base.choices)
    for group in set(chosen) - set(FOLLOWS):
        alone = composed(f"{group}={chosen[group]}")
        cfg[group] = alone.cfg[group]
        choices |= {name: option for name, option in alone.choices.items() if name.split("@")[0] == group}
    return Resolved(cfg, tuple(combination), choices)


def assert_helpful(answer: str) -> None:
    for line in answer.splitlines():
        assert "=" in line, f"names no setting: {line}"
        assert any(word in line for word in WAYS_OUT), f"no way out: {line}"


@pytest.mark.parametrize("spec", CHOICES["spec"])
@pytest.mark.parametrize("attention", CHOICES["attention"])
@pytest.mark.parametrize("model", CHOICES["model"])
def test_combination_is_accepted_or_refused_quickly(model, attention, spec):
    rest = [CHOICES[group] for group in MATRIX if group not in ("model", "attention", "spec")]
    for combination in itertools.product((model,), (attention,), (spec,), *rest):
        resolved = assembled(combination)
        start = time.process_time()
        try:
            check(resolved)
        except UserError as error:
            assert_helpful(str(error))
        assert time.process_time() - start < 1.0, combination


@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_every_pair_composes_like_its_parts_and_is_judged_in_two_seconds(pair):
    start = time.process_time()
    answer = judge([*pair, "device=cpu"])
    assert time.process_time() - start < 2.0
    if answer != "accepted":
        assert_helpful(answer)
    groups = {override.split("=")[0] for override in pair}
    defaults = [f"{group}={TREE.defaults[group]}" for group in MATRIX if group not in groups]
    whole = compose([*pair, "device=cpu"])
    parts = assembled([*pair, *defaults])
    assert parts.cfg == whole.cfg
    assert parts.choices == whole.choices


def test_the_defaults_are_accepted():
    assert judge([]) == "accepted"


@pytest.mark.parametrize("group", [g for g in TREE.defaults if g not in MATRIX])
def test_other_groups_compose_with_every_option(group):
    for option in TREE.groups[group]:
        answer = judge([f"{group}={option}", "model=tiny", "device=cpu"])
        assert answer == "accepted" or f"{group}=" in answer
