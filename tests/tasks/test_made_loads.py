"""Loads that are made, not read: seeds, lengths, shared prefixes, turns."""

from __future__ import annotations

import pytest
from workload_cases import items, workload

from engine.errors import UserError
from engine.rules import compose_checked

MADE = ("random", "random_lengths", "shared_prefix", "multi_turn")


@pytest.mark.parametrize("name", MADE)
def test_made_loads_depend_on_their_seed_alone(name: str) -> None:
    small = (f"workload={name}", "limit=6")
    assert items(*small) == items(*small)
    assert items(*small) != items(*small, "seed=1")
    assert len(items(*small)) == 6
    longer = items(*small, "limit=8")
    assert longer[:6] == items(*small)


@pytest.mark.parametrize(("name", "honest"), [*((name, False) for name in MADE[:3]), ("multi_turn", True)])
def test_random_tokens_are_marked(name: str, honest: bool) -> None:
    """Field report M2."""
    assert workload(f"workload={name}").representative is honest


def test_lengths_fill_their_ranges() -> None:
    found = items("workload=random", "count=200", "input_len=[3,7]", "output_len=[2,4]")
    assert {len(item.ids) for item in found} == {3, 4, 5, 6, 7}
    assert {item.max_tokens for item in found} == {2, 3, 4}
    assert all(item.max_tokens is None for item in items("workload=random", "count=3"))
    assert {item.max_tokens for item in items("workload=random", "output_len=9")} == {9}
    mixed = items("workload=random_lengths")
    assert len(mixed) == 512
    assert all(32 <= len(i.ids) <= 1024 and 32 <= (i.max_tokens or 0) <= 512 for i in mixed)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("input_len=[7,3]", "workload.input_len=[7, 3] is no range"),
        ("input_len=[0,3]", "workload.input_len=[0, 3] is no range"),
        ("output_len=[9,2]", "workload.output_len=[9, 2] is no range"),
        ("input_len=0", "workload.input_len=0 has to be at least 1"),
        ("input_len=[1,2,3]", "workload.input_len=[1, 2, 3] has to be an integer or a list"),
    ],
)
def test_wrong_lengths_are_named(override: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        compose_checked(["workload=random", f"workload.{override}", "model=tiny", "device=cpu"])
    assert words in str(caught.value)


def test_groups_share_their_prefix_and_nothing_else() -> None:
    found = items("workload=shared_prefix", "groups=3", "per_group=4", "prefix_len=20", "suffix_len=5")
    heads = [item.ids[:20] for item in found]
    assert len(found) == 12
    assert sorted(heads.count(head) for head in set(heads)) == [4, 4, 4]
    assert len({item.ids for item in found}) == 12
    assert heads != sorted(heads, key=heads.index), "groups are mixed"


def test_conversations_have_their_turns() -> None:
    found = items("workload=multi_turn", "count=5", "turns=12", "system=Be brief.")
    assert [len(item.turns) for item in found] == [12] * 5
    assert {item.system for item in found} == {"Be brief."}
    assert len({item.turns for item in found}) == 5
    assert not any("{" in text for item in found for text in item.turns)
