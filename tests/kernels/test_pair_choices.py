"""Plans of paired gated products in tables: which can be, how a file holds them and what stands in for them,
and what becomes of a table where kernels in CUDA C++ cannot be used."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from choices_tables import GATED, HERE, PLACE, PLAN, TABLE, written

from engine import factories
from engine.devices import DeviceFacts
from engine.kernel_choices.described import described
from engine.kernel_choices.limits import MOST_SHARED
from engine.kernel_choices.plans import Choices, Plan
from engine.kernel_choices.source import Found, read
from engine.kernel_choices.table import INTERPRETER, ChoiceTable, Entry, as_document, from_document
from engine.kernel_choices.usable import usable

PAIR = Plan("pair", 256, 64, 8, 3, gate=True)
EVEN = Plan("even", 256, 64, 8, 4, gate=True)
AT_192, AT_256 = (replace(GATED, tokens=tokens) for tokens in (192, 256))
ENTRIES = {
    **TABLE.entries,
    AT_192: Entry(PAIR, 8e-5, 8.4e-5),
    AT_256: Entry(PAIR, 9e-5, 10e-5, Entry(EVEN, 9.4e-5, 10e-5)),
}
PAIRED = ChoiceTable(HERE, ENTRIES)
NAMED = {"stage": "norm_gated", "dtype": "bfloat16", "tokens": 192, "n": 28672, "k": 4096}

BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"stage": "norm_linear"}, {}, "nothing to fuse"),
    ({"stage": "linear"}, {"gate": False}, "kernel pair computes gated products alone"),
    ({"dtype": "float32"}, {}, "kernel pair multiplies 16-bit weights, not float32"),
    ({"tokens": 128}, {}, "kernel pair takes 129 to 256 tokens, not 128"),
    ({"tokens": 8}, {}, "kernel pair takes 129 to 256 tokens, not 8"),
    ({"k": 4100}, {}, "8 inputs and 8 results at a time, not any 28672 x 4100"),
    ({"n": 28680}, {}, "8 inputs and 8 results at a time, not any 28680 x 4096"),
    ({}, {"norm": True}, "kernel pair knows no norm"),
    ({}, {"split": 2}, "kernel pair knows no split"),
    ({}, {"swap": True}, "kernel pair knows no swap"),
    ({}, {"turns": 2}, "kernel pair takes turns=1 alone, not 2"),
    ({}, {"turns": 0}, "turns=0"),
    ({}, {"block_n": 128}, "kernel pair takes block_n=256 alone, not 128"),
    ({}, {"block_n": 512}, "kernel pair takes block_n=256 alone, not 512"),
    ({}, {"block_k": 32}, "kernel pair takes block_k=64 alone, not 32"),
    ({}, {"warps": 4}, "kernel pair takes warps=8 alone, not 4"),
    ({}, {"stages": 1}, "kernel pair has 2 stages at least, not 1"),
    ({}, {"stages": 4}, "shared memory: 294912, more than 232448"),
]


@pytest.mark.parametrize(("change", "other", "why"), BAD)
def test_impossible_plans_are_named(change: dict[str, Any], other: dict[str, Any], why: str) -> None:
    row = {**NAMED, "plan": asdict(PAIR), "us": 1.0, "library_us": 2.0}
    table = {**as_document(TABLE), "entries": [row]}
    from_document(table)  # which is right without the change
    with pytest.raises(ValueError, match=why):
        from_document({**table, "entries": [{**row, **change, "plan": {**asdict(PAIR), **other}}]})


def test_bounds() -> None:
    """As many programs as an H200 has processors at most, two for every 224 lines; room for barriers too."""
    for stages in (2, 3):
        plan = replace(PAIR, stages=stages)
        assert not AT_256.problem(plan)
        assert plan.shared_bytes(256, 2) + 1024 + 64 <= MOST_SHARED
    assert [PAIR.programs(tokens, 28672) for tokens in (129, 200, 256)] == [128] * 3
    assert [PAIR.programs(129, n) for n in (16, 448, 464, 2000)] == [2, 2, 4, 10]


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", PAIRED)
    found = read(path)
    assert found.entries == ENTRIES
    rows = {row["tokens"]: row for row in json.loads(path.read_text())["entries"]}
    assert rows[192] == {**NAMED, "plan": asdict(PAIR), "us": 80.0, "library_us": 84.0}
    assert rows[256] == {
        **NAMED, "tokens": 256, "plan": asdict(PAIR), "us": 90.0, "library_us": 100.0,
        "instead": {"plan": asdict(EVEN), "us": 94.0, "library_us": 100.0},
    }  # fmt: skip
    assert found.choices().plan(GATED.stage, GATED.dtype, 129, GATED.n, GATED.k) == PAIR
    compiled = found.choices().compiled(GATED.stage, GATED.dtype, GATED.n, GATED.k)
    assert {tokens: plan for tokens, plan in compiled.items() if tokens > 8} == {192: PAIR, 256: PAIR}


@pytest.mark.parametrize(
    ("plan", "instead", "why"),
    [
        (PAIR, [], "not a table"),
        (PAIR, {"plan": None}, "not a table"),
        (PAIR, {"plan": {**asdict(EVEN), "stages": 9}, "us": 1.0, "library_us": 2.0}, "cannot work"),
        (PAIR, {"plan": asdict(PAIR), "us": 1.0, "library_us": 2.0}, "256 tokens, .* a plan and another"),
        (EVEN, {"plan": asdict(EVEN), "us": 1.0, "library_us": 2.0}, "256 tokens, .* a plan and another"),
        (None, {"plan": asdict(EVEN), "us": 1.0, "library_us": 2.0}, "256 tokens, .* a plan and another"),
    ],
)
def test_what_stands_instead_is_another_plan_for_the_same_place(
    plan: Plan | None, instead: Any, why: str
) -> None:
    row = {**NAMED, "tokens": 256, "plan": plan and asdict(plan), "us": 1.0, "library_us": 2.0}
    with pytest.raises(ValueError, match=why):
        from_document({**as_document(TABLE), "entries": [{**row, "instead": instead}]})


def test_an_interpreter_has_no_such_plan() -> None:
    there = ChoiceTable(replace(HERE, gpu=INTERPRETER), {AT_192: ENTRIES[AT_192]})
    with pytest.raises(ValueError, match="kernel pair, which cannot be interpreted"):
        from_document(as_document(there))


def test_without_them_the_next_best_is_used_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """And what a run folder keeps of the table is what was used, each with its own time."""
    with caplog.at_level(logging.WARNING):
        found = usable(Found(PAIRED, "a table"), lambda: "NVRTC cannot be loaded")
    assert found.table.entries == {
        **TABLE.entries,
        AT_192: Entry(None, 8.4e-5, 8.4e-5),
        AT_256: Entry(EVEN, 9.4e-5, 10e-5),
    }
    assert found.why == "a table, without kernels in CUDA C++ (NVRTC cannot be loaded)"
    (record,) = caplog.records
    assert record.getMessage() == (
        "kernels in CUDA C++ cannot be used, NVRTC cannot be loaded: at 2 of 4 measured places products take "
        "the next best"
    )
    assert from_document(as_document(found.table)).entries == found.table.entries


def test_with_them_nothing_changes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        given = Found(PAIRED, "a table")
        assert usable(given, lambda: "") is given
        other = Found(TABLE, "a table")  # which has none: nobody asks
        assert usable(other, lambda: pytest.fail("asked")) is other
    assert not caplog.records


def test_an_engine_s_table_is_one_that_it_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.json", PAIRED)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: HERE.gpu)
    attention = {"_target_": "backends.triton.TritonAttention"}

    def plan() -> Plan | None:
        found = factories.kernel_choices(str(path), torch.device("cuda", 0), attention)
        choices: Choices = found.table.choices()
        assert choices.plan(PLACE.stage, PLACE.dtype, 1, PLACE.n, PLACE.k) == PLAN
        return choices.plan(GATED.stage, GATED.dtype, 256, GATED.n, GATED.k)

    monkeypatch.setattr(factories, "why_not", lambda: "")
    assert plan() == PAIR
    monkeypatch.setattr(factories, "why_not", lambda: "the device has compute capability 10.0, not 9.0")
    assert plan() == EVEN


def test_explained_in_a_clause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.kernel_choices.described.gpu_name", lambda index: HERE.gpu)
    cuda = DeviceFacts("cuda", "cuda", 0, 1, True)
    told = described(str(written(tmp_path / "t.json", PAIRED)), cuda, True)
    assert (
        "own kernels at 4 of 4 measured places (2 in CUDA C++, if the start of the engine finds that" in told
    )
    assert "CUDA C++" not in described(str(written(tmp_path / "u.json")), cuda, True)
