"""Every combination of options is accepted, or refused with a sentence, in under two seconds.

The support matrix is the validator: what is accepted here, the tests of the engine build and run.
"""

from __future__ import annotations

import itertools
import time

import pytest

from engine.compose import compose
from engine.conf_tree import conf_tree
from engine.errors import UserError
from engine.rules import check

TREE = conf_tree()
MATRIX = ("model", "attention", "spec", "overlap", "tbo", "pcg", "graph", "cache", "scheduler")
CHOICES = [tuple(f"{group}={option}" for option in TREE.groups[group]) for group in MATRIX]
WAYS_OUT = ("use ", "set ", "choose ", "give ", "pip ", "needs ")
COMBINATIONS = list(itertools.product(*CHOICES))


def judge(overrides) -> str:
    """ "accepted", or the message."""
    try:
        check(compose(overrides))
    except UserError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("combination", COMBINATIONS, ids=" ".join)
def test_combination_is_accepted_or_refused_quickly(combination):
    start = time.process_time()
    answer = judge([*combination, "device=cpu"])
    assert time.process_time() - start < 2.0
    if answer != "accepted":
        for line in answer.splitlines():
            assert "=" in line, f"names no setting: {line}"
            assert any(word in line for word in WAYS_OUT), f"no way out: {line}"


def test_the_defaults_are_accepted():
    assert judge([]) == "accepted"


@pytest.mark.parametrize("group", [g for g in TREE.defaults if g not in MATRIX])
def test_other_groups_compose_with_every_option(group):
    for option in TREE.groups[group]:
        answer = judge([f"{group}={option}", "model=tiny", "device=cpu"])
        assert answer == "accepted" or f"{group}=" in answer
