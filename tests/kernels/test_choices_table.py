"""Tables of kernel choices: their form, where they are found, and what becomes of broken and foreign ones."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.devices import DeviceFacts, gpu_name
from engine.errors import UserError
from engine.kernel_choices import source
from engine.kernel_choices.described import described
from engine.kernel_choices.plans import BUCKETS, STAGES, Choices, Place, Plan, bucket_of
from engine.kernel_choices.source import SHIPPED, cached_file, find, keep, read
from engine.kernel_choices.table import ChoiceTable, Circumstances, Entry, as_document, from_document

HERE = Circumstances("NVIDIA H200", "2.11.0", "3.6.0")
PLACE = Place("linear", "bfloat16", 1, 4096, 4096)
GATED = Place("norm_gated", "bfloat16", 8, 28672, 4096)
PLAN = Plan("rows", 4, 2048, warps=8)
TABLE = ChoiceTable(
    HERE, {PLACE: Entry(PLAN, 8e-6, 9.5e-6), GATED: Entry(Plan("tile", 64, 128, gate=True), 6e-5, 7e-5)}
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def nothing_ships(tmp_path: Path) -> Path:
    return tmp_path / "none"


def written(path: Path, table: ChoiceTable = TABLE, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**as_document(table), **changes}))
    return path


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    lost = replace(PLACE, n=576)
    table = ChoiceTable(HERE, {**TABLE.entries, lost: Entry(None, 1e-6, 1e-6)})
    found = read(written(tmp_path / "t.json", table))
    assert found.measured_on == HERE
    assert {place: entry.plan for place, entry in found.entries.items()} == {
        place: entry.plan for place, entry in table.entries.items()
    }
    choices = found.choices()
    assert choices.plan("linear", "bfloat16", 1, 4096, 4096) == PLAN
    assert choices.plan("linear", "bfloat16", 1, 576, 4096) is None


def test_tokens_between_the_buckets_take_the_next_one() -> None:
    asked = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 64)
    assert [bucket_of(tokens) for tokens in asked] == [1, 2, 3, 4, 5, 6, 8, 8, 16, 32, 64, 64]
    assert bucket_of(65) is None
    choices = TABLE.choices()
    found = [choices.plan("norm_gated", "bfloat16", tokens, 28672, 4096) for tokens in (1, 4, 5, 8, 9)]
    assert [plan is not None for plan in found] == [False, True, True, True, False]
    assert choices.plan("norm_gated", "float32", 8, 28672, 4096) is None
    assert Choices({}).plan("linear", "bfloat16", 0, 1, 1) is None


def test_a_table_without_larger_buckets_in_between_serves_them_with_the_next_one() -> None:
    tile = Plan("tile", 64, 64)
    choices = Choices({Place("linear", "bfloat16", 64, 4096, 4096): tile})
    found = [choices.plan("linear", "bfloat16", tokens, 4096, 4096) for tokens in (8, 9, 16, 17, 64)]
    assert found == [None, tile, tile, tile, tile]


def test_a_table_without_the_finer_buckets_serves_them_with_the_next_one() -> None:
    """As tables that were written before there were buckets of 5 and 6."""
    eight, five = Plan("tile", 64, 64), Plan("rows", 4, 512)
    place = Place("linear", "bfloat16", 8, 4096, 4096)

    def found(choices: Choices) -> list[Plan | None]:
        return [choices.plan("linear", "bfloat16", tokens, 4096, 4096) for tokens in (1, 2, 4, 5, 6, 7, 8)]

    assert found(Choices({place: eight})) == [None, *[eight] * 6]
    assert found(Choices({place: None})) == [None] * 7
    measured = {place: eight, replace(place, tokens=5): five, replace(place, tokens=6): None}
    assert found(Choices(measured)) == [None, five, five, five, None, eight, eight]


def test_every_number_of_tokens_that_has_kernels_of_its_own_is_known() -> None:
    """The rows kernel is compiled for a number of tokens, the tile kernel serves all of its bucket."""
    rows, tile = Plan("rows", 4, 512), Plan("tile", 64, 64)
    plans = {1: rows, 5: rows, 6: tile, 8: rows, 16: tile, 64: None}
    choices = Choices({Place("linear", "bfloat16", t, 64, 64): plan for t, plan in plans.items()})
    expected = {1: rows, 2: rows, 3: rows, 4: rows, 5: rows, 6: tile, 7: rows, 8: rows, 16: tile}
    assert choices.compiled("linear", "bfloat16", 64, 64) == expected


BROKEN: list[tuple[Any, str]] = [
    ([], "not a table of kernel choices"),
    ({"version": 2}, "that this version reads"),
    ({"version": 1, "gpu": "x"}, "not a table"),
    ({**as_document(TABLE), "entries": [1]}, "not a table"),
    ({**as_document(TABLE), "entries": None}, "not a table"),
]
ROW = as_document(TABLE)["entries"][0]
BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"stage": "conv"}, "stage 'conv', which is none of linear"),
    ({"tokens": 7}, "7 tokens are none of 1, 2, 3, 4, 5, 6, 8"),
    ({"n": 0}, "positive whole number"),
    ({"n": 4096.0}, "positive whole number"),
    ({"n": True}, "positive whole number"),
    ({"plan": {"kernel": "rows"}}, "of another form"),
    ({"plan": {**ROW["plan"], "block_n": "4"}}, "of another form"),
    ({"plan": {**ROW["plan"], "kernel": "magic"}}, "'magic' is none of rows, tile"),
    ({"plan": {**ROW["plan"], "block_k": 100}}, "block_k=100 is no power of two"),
    ({"plan": {**ROW["plan"], "kernel": "tile", "block_n": 8}}, "16 rows and columns"),
    ({"plan": {**ROW["plan"], "split": 99}}, "split=99"),
    ({"plan": {**ROW["plan"], "gate": True}}, "nothing to fuse"),
    ({"tokens": 16}, "rows takes 1 to 8 tokens, not 16"),
]


@pytest.mark.parametrize(("document", "why"), BROKEN)
def test_what_is_no_table_is_named(document: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_document(document)


@pytest.mark.parametrize(("change", "why"), BAD_ROWS)
def test_impossible_plans_are_named(change: dict[str, Any], why: str) -> None:
    assert ROW["stage"] == "linear"
    with pytest.raises(ValueError, match=why):
        from_document({**as_document(TABLE), "entries": [{**ROW, **change}]})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "\ufffe", '{"version": 1}'])
def test_a_broken_file_is_refused_by_a_sentence(text: str, tmp_path: Path, nothing_ships: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(
        UserError, match=r"kernels=.*t\.json cannot be used: .*tune_kernels --out FILE.*kernels=auto"
    ):
        find(str(path), HERE, nothing_ships)


def test_a_missing_file_is_refused_by_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be used: No such file"):
        find(str(tmp_path / "none.json"), HERE)


def test_a_file_of_another_gpu_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "t.json", gpu="NVIDIA A100")
    with caplog.at_level(logging.WARNING):
        found = find(str(path), HERE)
    assert not found.table.entries
    assert "measured on NVIDIA A100, and this is NVIDIA H200" in caplog.text


def test_a_file_of_other_versions_is_used_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "t.json", triton="3.5.1")
    with caplog.at_level(logging.WARNING):
        found = find(str(path), HERE)
    assert found.table.entries.keys() == TABLE.entries.keys()
    assert "torch 2.11.0 and triton 3.5.1, this is torch 2.11.0 and triton 3.6.0" in caplog.text


def test_auto_reads_the_cache_of_these_circumstances_alone(nothing_ships: Path) -> None:
    assert not find("auto", HERE, nothing_ships).table.entries
    place = keep(TABLE)
    assert place == cached_file(HERE)
    assert "nvidia-h200" in place.name
    assert find("auto", HERE, nothing_ships).table.entries.keys() == TABLE.entries.keys()
    assert not find("torch", HERE, nothing_ships).table.entries
    for other in (
        replace(HERE, gpu="NVIDIA H100"),
        replace(HERE, torch="2.12.0"),
        replace(HERE, triton="3.7.0"),
    ):
        assert not find("auto", other, nothing_ships).table.entries


def test_newer_entries_join_the_cache() -> None:
    keep(TABLE)
    other = Place("linear", "bfloat16", 2, 4096, 4096)
    keep(ChoiceTable(HERE, {PLACE: Entry(None, 7e-6, 7e-6), other: Entry(PLAN, 1e-6, 2e-6)}))
    found = read(cached_file(HERE)).entries
    assert set(found) == {PLACE, GATED, other}
    assert found[PLACE].plan is None


@pytest.mark.parametrize(
    "text", ["", "{}", json.dumps(as_document(replace(TABLE, measured_on=replace(HERE, gpu="x"))))]
)
def test_a_damaged_cache_is_left_out_with_a_warning(
    text: str, nothing_ships: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(TABLE).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert not find("auto", HERE, nothing_ships).table.entries
    assert "cannot be used" in caplog.text
    keep(TABLE)  # and measuring again mends it
    assert find("auto", HERE, nothing_ships).table.entries.keys() == TABLE.entries.keys()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot write .* give --out FILE"):
        keep(TABLE)


def test_what_ships_serves_its_gpu_and_minor_versions(tmp_path: Path) -> None:
    written(tmp_path / "ships" / "h200.json")
    ships = tmp_path / "ships"
    for here, found in (
        (HERE, True), (replace(HERE, torch="2.11.1"), True), (replace(HERE, torch="2.12.0"), False),
        (replace(HERE, gpu="NVIDIA H100"), False),
    ):  # fmt: skip
        assert bool(find("auto", here, ships).table.entries) is found
    keep(ChoiceTable(HERE, {PLACE: Entry(None, 1e-6, 1e-6)}))
    merged = find("auto", HERE, ships).table.entries
    assert merged[PLACE].plan is None  # one's own measurement counts
    assert merged[GATED].plan is not None


def test_every_table_that_ships_can_be_read() -> None:
    for path in SHIPPED.glob("*.json"):
        assert read(path).entries, path


def test_explained_in_a_clause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda = DeviceFacts("cuda", "cuda", 0, 1, True)
    assert "follows no table" in described("auto", cuda, False)
    monkeypatch.setattr("engine.kernel_choices.described.gpu_name", lambda index: None)
    assert "not known before the engine is built" in described("auto", cuda, True)
    monkeypatch.setattr("engine.kernel_choices.described.gpu_name", lambda index: HERE.gpu)
    assert source.TUNE in described("auto", cuda, True)
    assert "own kernels at 2 of 2" in described(str(written(tmp_path / "t.json")), cuda, True)
    assert "cannot be used" in described(str(tmp_path / "none.json"), cuda, True)


def test_the_driver_names_its_gpus(tmp_path: Path) -> None:
    for index, name in enumerate(("NVIDIA H200", "NVIDIA L4")):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:{index}0:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   1\n")
    assert [gpu_name(index, tmp_path) for index in (0, 1, 2)] == ["NVIDIA H200", "NVIDIA L4", None]
    assert gpu_name(0, tmp_path / "empty") is None


def test_stages_and_buckets_are_what_files_were_written_with() -> None:
    """A change would make every table out there unreadable: raise the version with it."""
    assert list(STAGES) == ["linear", "norm_linear", "norm_gated", "best"]
    assert BUCKETS == (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
