"""Where a table comes from: a file that is named, one's own cache, what ships; broken and
foreign ones, and what is said of each."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from choices_tables import GATED, HERE, PLACE, PLAN, TABLE, written

from engine.devices import DeviceFacts, gpu_name
from engine.errors import UserError
from engine.kernel_choices import source
from engine.kernel_choices.described import described
from engine.kernel_choices.plans import Place
from engine.kernel_choices.source import SHIPPED, cached_file, find, keep, read
from engine.kernel_choices.table import ChoiceTable, Entry, as_document


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def nothing_ships(tmp_path: Path) -> Path:
    return tmp_path / "none"


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
    shipped = list(SHIPPED.glob("*.json"))
    assert shipped
    for path in shipped:
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
