"""Plans of products by halves in tables: which can be, how a file holds them and what stands in for them, and
what becomes of a table where kernels in CUDA C++ cannot be used."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from choices_tables import GATED, HERE, TABLE, written

from engine.devices import DeviceFacts
from engine.kernel_choices.described import described
from engine.kernel_choices.limits import MOST_SHARED
from engine.kernel_choices.plans import Place, Plan
from engine.kernel_choices.source import Found, read
from engine.kernel_choices.table import INTERPRETER, ChoiceTable, Entry, as_document, from_document
from engine.kernel_choices.usable import usable

HALVES = Plan("halves", 128, 64, 8, 6)
PAIR = Plan("pair", 256, 64, 8, 3, gate=True)
EVEN = replace(PAIR, kernel="even")
DOWN = Place("linear", "bfloat16", 192, 4096, 14336)
GATED_256 = replace(GATED, tokens=256)
ENTRIES = {
    **TABLE.entries,
    DOWN: Entry(HALVES, 5e-5, 5.5e-5),
    Place("norm_linear", "float16", 256, 6144, 4096): Entry(HALVES, 3e-5, 3.5e-5),
    GATED_256: Entry(HALVES, 9e-5, 10e-5, Entry(EVEN, 9.4e-5, 10e-5)),
}
HALVED = ChoiceTable(HERE, ENTRIES)
ROW = {
    "stage": "linear", "dtype": "bfloat16", "tokens": 192, "n": 4096, "k": 14336,
    "us": 50.0, "library_us": 55.0,
}  # fmt: skip

BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"gate": True}, "nothing to fuse"),
    ({"stage": "norm_gated"}, {"gate": True}, "kernel halves computes no gated product"),
    ({"stage": "best"}, {}, "stage best takes no split, and not kernels direct and halves"),
    ({"dtype": "float32"}, {}, "kernel halves multiplies 16-bit weights, not float32"),
    ({"tokens": 128}, {}, "kernel halves takes 129 to 256 tokens, not 128"),
    ({"tokens": 8}, {}, "kernel halves takes 129 to 256 tokens, not 8"),
    ({"tokens": 512}, {}, "512 tokens are none of 1, .*, 192, 256"),
    ({"k": 14340}, {}, "8 inputs and 8 results at a time, not any 4096 x 14340"),
    ({"n": 4100}, {}, "8 inputs and 8 results at a time, not any 4100 x 14336"),
    ({}, {"norm": True}, "nothing to fuse"),
    ({"stage": "norm_linear"}, {"norm": True}, "kernel halves knows no norm"),
    ({}, {"split": 2}, "kernel halves knows no split"),
    ({}, {"swap": True}, "kernel halves knows no swap"),
    ({}, {"turns": 2}, "kernel halves takes turns=1 alone, not 2"),
    ({}, {"turns": 0}, "turns=0"),
    ({}, {"block_n": 64}, "kernel halves takes block_n=128 alone, not 64"),
    ({}, {"block_n": 256}, "kernel halves takes block_n=128 alone, not 256"),
    ({}, {"block_k": 128}, "kernel halves takes block_k=64 alone, not 128"),
    ({}, {"warps": 4}, "kernel halves takes warps=8 alone, not 4"),
    ({}, {"stages": 1}, "kernel halves has 2 stages at least, not 1"),
    ({}, {"stages": 7}, "shared memory: 262144, more than 232448"),
]


@pytest.mark.parametrize(("change", "other", "why"), BAD)
def test_impossible_plans_are_named(change: dict[str, Any], other: dict[str, Any], why: str) -> None:
    row = {**ROW, "plan": asdict(HALVES)}
    table = {**as_document(TABLE), "entries": [row]}
    from_document(table)  # which is right without the change
    with pytest.raises(ValueError, match=why):
        from_document({**table, "entries": [{**row, **change, "plan": {**asdict(HALVES), **other}}]})


def test_bounds() -> None:
    """Two programs for every 128 lines and 128 tokens; room for barriers too."""
    for stages in (2, 3, 4, 5, 6):
        plan = replace(HALVES, stages=stages)
        assert not DOWN.problem(plan)
        assert plan.shared_bytes(256, 2) + 1024 + 16 * stages <= MOST_SHARED
    assert [HALVES.programs(tokens, 4096) for tokens in (129, 200, 256)] == [128] * 3
    assert [HALVES.programs(129, n) for n in (8, 128, 136, 1000, 6144)] == [4, 4, 8, 32, 192]


@pytest.mark.parametrize(("n", "k"), [(8, 8), (136, 72), (1000, 520), (576, 1536)])
def test_any_size_of_whole_16_bytes_will_do(n: int, k: int) -> None:
    for dtype in ("bfloat16", "float16"):
        assert not Place("norm_linear", dtype, 256, n, k).problem(HALVES)


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", HALVED)
    found = read(path)
    assert found.entries == ENTRIES
    rows = {(row["stage"], row["tokens"]): row for row in json.loads(path.read_text())["entries"]}
    assert rows["linear", 192] == {**ROW, "plan": asdict(HALVES)}
    assert rows["norm_gated", 256]["instead"] == {"plan": asdict(EVEN), "us": 94.0, "library_us": 100.0}
    choices = found.choices()
    served = {
        tokens: choices.plan("linear", "bfloat16", tokens, 4096, 14336) for tokens in (128, 129, 192, 193)
    }
    assert served == {128: None, 129: HALVES, 192: HALVES, 193: None}
    assert choices.compiled("linear", "bfloat16", 4096, 14336) == {192: HALVES}
    assert choices.compiled("norm_linear", "float16", 6144, 4096) == {256: HALVES}


@pytest.mark.parametrize(("first", "second"), [(HALVES, PAIR), (PAIR, HALVES), (HALVES, HALVES)])
def test_what_stands_instead_is_not_in_cuda_either(first: Plan, second: Plan) -> None:
    both = ChoiceTable(HERE, {GATED_256: Entry(first, 1e-5, 3e-5, Entry(second, 2e-5, 3e-5))})
    with pytest.raises(ValueError, match=r"256 tokens, .* must be of kernel pair or halves"):
        from_document(as_document(both))


def test_an_interpreter_has_no_such_plan() -> None:
    there = ChoiceTable(replace(HERE, gpu=INTERPRETER), {DOWN: ENTRIES[DOWN]})
    with pytest.raises(ValueError, match="kernel halves, which cannot be interpreted"):
        from_document(as_document(there))


def test_without_them_the_library_or_the_next_best_is_used_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = usable(Found(HALVED, "a table"), lambda: "NVRTC cannot be loaded")
    entries = found.table.entries
    assert entries[DOWN] == Entry(None, 5.5e-5, 5.5e-5)
    assert entries[GATED_256] == Entry(EVEN, 9.4e-5, 10e-5)
    assert not any(entry.in_cuda for entry in entries.values())
    assert found.table.choices().plan("linear", "bfloat16", 192, 4096, 14336) is None
    (record,) = caplog.records
    assert "at 3 of 5 measured places products take the next best" in record.getMessage()


def test_explained_in_a_clause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("engine.kernel_choices.described.gpu_name", lambda index: HERE.gpu)
    cuda = DeviceFacts("cuda", "cuda", 0, 1, True)
    told = described(str(written(tmp_path / "t.json", HALVED)), cuda, True)
    assert "own kernels at 5 of 5 measured places (3 in CUDA C++, if the start of the engine" in told
