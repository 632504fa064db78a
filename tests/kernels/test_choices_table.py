"""Tables of kernel choices: their form in a file, and what becomes of a document that is none."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from choices_tables import GATED, HERE, PLACE, PLAN, TABLE, written

from engine.kernel_choices.plans import BUCKETS, STAGES, Plan
from engine.kernel_choices.source import read
from engine.kernel_choices.table import INTERPRETER, ChoiceTable, Entry, as_document, from_document


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    lost = replace(PLACE, n=576)
    table = ChoiceTable(HERE, {**TABLE.entries, lost: Entry(None, 1e-6, 1e-6)})
    found = read(written(tmp_path / "t.json", table))
    assert found.measured_on == HERE
    assert found.entries == table.entries
    choices = found.choices()
    assert choices.plan("linear", "bfloat16", 1, 4096, 4096) == PLAN
    assert choices.plan("linear", "bfloat16", 1, 576, 4096) is None


def test_plans_of_older_tables_take_one_turn() -> None:
    document = as_document(TABLE)
    for row in document["entries"]:
        assert row["plan"].pop("turns") == 1
    assert from_document(document).entries == TABLE.entries


def test_plans_for_many_tokens_survive_their_file(tmp_path: Path) -> None:
    plans = {
        96: Plan("waves", 256, 64, 8, 4, gate=True),
        192: Plan("waves", 256, 64, 8, 3, gate=True, turns=2),
    }
    plans[256] = Plan("even", 256, 64, 8, 4, gate=True)
    entries = {replace(GATED, tokens=tokens): Entry(plan, 6e-5, 7e-5) for tokens, plan in plans.items()}
    entries[replace(GATED, tokens=128)] = Entry(None, 7e-5, 7e-5)
    found = read(written(tmp_path / "t.json", ChoiceTable(HERE, {**TABLE.entries, **entries})))
    assert found.entries == {**TABLE.entries, **entries}
    assert found.choices().plan(GATED.stage, GATED.dtype, 65, GATED.n, GATED.k) == plans[96]


def test_a_plan_for_many_tokens_can_be_interpreted() -> None:
    wide = {replace(GATED, tokens=96): Entry(Plan("waves", 256, 64, 8, gate=True), 1e-6, 2e-6)}
    document = as_document(ChoiceTable(replace(HERE, gpu=INTERPRETER), wide))
    assert from_document(document).entries == wide


def test_what_cannot_be_interpreted_is_no_plan_for_the_interpreter() -> None:
    direct = {PLACE: Entry(Plan("direct", 8, 256, 2, 2), 1e-6, 2e-6)}
    assert from_document(as_document(ChoiceTable(HERE, direct))).entries == direct
    there = replace(HERE, gpu=INTERPRETER)
    with pytest.raises(ValueError, match="kernel direct, which cannot be interpreted"):
        from_document(as_document(ChoiceTable(there, direct)))


BROKEN: list[tuple[Any, str]] = [
    ([], "not a table of kernel choices"),
    ({"version": 2}, "that this version reads"),
    ({"version": 1, "gpu": "x"}, "not a table"),
    ({**as_document(TABLE), "entries": [1]}, "not a table"),
    ({**as_document(TABLE), "entries": None}, "not a table"),
]
ROW = as_document(TABLE)["entries"][0]
TILE = asdict(Plan("tile", 64, 16, 4, 3))
DIRECT = asdict(Plan("direct", 8, 256, 2, 4))
BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"stage": "conv"}, "stage 'conv', which is none of linear"),
    ({"tokens": 7}, "7 tokens are none of 1, 2, 3, 4, 5, 6, 8"),
    ({"n": 0}, "positive whole number"),
    ({"n": 4096.0}, "positive whole number"),
    ({"n": True}, "positive whole number"),
    ({"plan": {"kernel": "rows"}}, "of another form"),
    ({"plan": {**ROW["plan"], "block_n": "4"}}, "of another form"),
    ({"plan": {**ROW["plan"], "kernel": "magic"}}, "'magic' is none of rows, tile, direct"),
    ({"plan": {**ROW["plan"], "block_k": 100}}, "block_k=100 is no power of two"),
    ({"plan": {**ROW["plan"], "kernel": "tile", "block_n": 8}}, "16 rows and columns"),
    ({"plan": {**ROW["plan"], "split": 99}}, "split=99"),
    ({"plan": {**ROW["plan"], "gate": True}}, "nothing to fuse"),
    ({"us": 10**400}, "not a table"),
    ({"plan": {**ROW["plan"], "warps": 64}}, "warps: 64, more than 32"),
    ({"plan": {**ROW["plan"], "block_n": 1 << 4000}}, "values that a thread holds"),
    ({"plan": {**ROW["plan"], "block_k": 16}}, "steps that are written out: 256, more than 144"),
    ({"plan": {**TILE, "split": 256}}, "split: 256, more than 64"),
    ({"plan": {**TILE, "block_n": 256, "block_k": 256}}, "shared memory: 417792, more than 232448"),
    ({"plan": {**TILE, "stages": 33}}, "stages: 33"),
    ({"plan": {**TILE, "block_n": 4096, "stages": 1}}, "values that a thread holds: 512, more than 128"),
    ({"plan": {**DIRECT, "turns": 10**9}}, "operations that are written out"),
    ({"plan": {**DIRECT, "turns": 65}}, "operations that are written out"),
    ({"plan": {**DIRECT, "block_n": 1 << 20}}, "values that a thread holds"),
    ({"plan": {**DIRECT, "block_k": 1 << 20}}, "values that a thread holds"),
    ({"plan": {**DIRECT, "block_n": 128, "block_k": 4096, "warps": 32}}, "shared memory: 262144"),
    ({"tokens": 16}, "rows takes 1 to 8 tokens, not 16"),
]


WIDE = asdict(Plan("waves", 256, 64, 8, 4, gate=True))
EVEN = asdict(Plan("even", 256, 64, 8, 4, gate=True))
BAD_WIDE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"stage": "norm_linear"}, WIDE, "nothing to fuse"),
    ({"stage": "linear"}, {**WIDE, "gate": False}, "kernel waves computes gated products alone"),
    ({}, {**EVEN, "gate": False}, "kernel even computes gated products alone"),
    ({"dtype": "float32"}, WIDE, "kernel waves multiplies 16-bit weights, not float32"),
    ({"tokens": 512}, WIDE, "512 tokens are none of 1, .*, 192, 256"),
    ({}, asdict(Plan("tile", 64, 64, gate=True)), "kernel tile takes 1 to 64 tokens, not 96"),
    ({"k": 4100}, WIDE, "8 inputs and 8 results at a time, not any 28672 x 4100"),
    ({"n": 28680}, EVEN, "8 inputs and 8 results at a time, not any 28680 x 4096"),
    ({}, {**WIDE, "norm": True}, "kernel waves knows no norm"),
    ({}, {**WIDE, "split": 2}, "kernel waves knows no split"),
    ({}, {**EVEN, "swap": True}, "kernel even knows no swap"),
    ({}, {**EVEN, "turns": 2}, "kernel even cannot take turns=2"),
    ({}, {**WIDE, "turns": 0}, "kernel waves cannot take turns=0"),
    ({}, {**WIDE, "block_n": 32}, "64 rows and 16 columns at least"),
    ({}, {**WIDE, "block_k": 8}, "64 rows and 16 columns at least"),
    ({}, {**WIDE, "block_n": 192}, "block_n=192 is no power of two"),
    ({}, {**WIDE, "stages": 5}, "shared memory: 278528, more than 232448"),
    ({}, {**EVEN, "stages": 0}, "stages=0"),
    ({}, {**WIDE, "warps": 4}, "values that a thread holds: 256, more than 128"),
]


@pytest.mark.parametrize(("change", "plan", "why"), BAD_WIDE)
def test_impossible_plans_for_many_tokens_are_named(
    change: dict[str, Any], plan: dict[str, Any], why: str
) -> None:
    wide = ChoiceTable(HERE, {replace(GATED, tokens=96): Entry(Plan(**WIDE), 1e-6, 2e-6)})
    (row,) = as_document(wide)["entries"]
    from_document(as_document(wide))  # which is right without the change
    with pytest.raises(ValueError, match=why):
        from_document({**as_document(wide), "entries": [{**row, "plan": plan, **change}]})


@pytest.mark.parametrize("stages", [3, 4])
def test_plans_for_many_tokens_fit_a_block_of_a_hopper(stages: int) -> None:
    """Operands in flight, and 32 KiB of results; programs as many as an H200 has multiprocessors at most."""
    for values in (WIDE, EVEN):
        plan = Plan(**{**values, "stages": stages})
        assert plan.shared_bytes(256, 2) == stages * (256 + 128) * 64 * 2 + (32 << 10)
        assert not replace(GATED, tokens=256).problem(plan)
    waves, even = Plan(**WIDE), Plan(**EVEN)
    assert [waves.programs(tokens, 28672) for tokens in (65, 128, 129, 256)] == [112, 112, 224, 224]
    assert [replace(waves, turns=2).programs(tokens, 28672) for tokens in (128, 256)] == [56, 112]
    assert [even.programs(tokens, 28672) for tokens in (65, 128, 129, 256)] == [64, 64, 128, 128]
    assert even.programs(256, 28672 + 16) == 130


@pytest.mark.parametrize(("document", "why"), BROKEN)
def test_what_is_no_table_is_named(document: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_document(document)


@pytest.mark.parametrize(("change", "why"), BAD_ROWS)
def test_impossible_plans_are_named(change: dict[str, Any], why: str) -> None:
    assert ROW["stage"] == "linear"
    with pytest.raises(ValueError, match=why):
        from_document({**as_document(TABLE), "entries": [{**ROW, **change}]})


def test_stages_and_buckets_are_what_files_were_written_with() -> None:
    """A change would make every table out there unreadable: raise the version with it."""
    assert list(STAGES) == ["linear", "norm_linear", "norm_gated", "best"]
    assert BUCKETS == (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 96, 128, 192, 256)
