"""Where step costs come from: a cache that is checked, measurements that may be kept, files as they are; and
what a table of them says between the measured batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.calibrate import Measurement, Ratio
from engine.errors import UserError
from engine.step_costs import STEADY, TOLERANCE, as_document, cached_file, costs_from, from_document
from speculative.width import StepCosts

TABLE = StepCosts({(1, 1): 0.01, (1, 3): 0.02, (4, 1): 0.02, (4, 3): 0.05}, {1: 0.001, 4: 0.002})


def test_a_table_reads_back_as_it_was() -> None:
    assert from_document(json.loads(json.dumps(as_document(TABLE)))) == TABLE


def test_costs_between_and_beyond_the_measured_batches() -> None:
    table = StepCosts({(1, 1): 1.0, (4, 1): 2.5, (8, 1): 4.5}, {2: 0.5})
    assert [table.at(b, 1) for b in (1, 2, 4, 6, 16)] == [1.0, 1.5, 2.5, 3.5, 9.0]
    assert [table.resume_at(b) for b in (1, 2, 8)] == [0.5, 0.5, 2.0]
    with pytest.raises(KeyError):
        table.at(1, 2)
    assert StepCosts({}).resume_at(3) == 0.0


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"seconds": [[1, 1]], "resume": []},
        {"seconds": [[1, 1, 0.1], [1, 2, 0.2], [2, 1, 0.1]], "resume": []},
        {"seconds": [[1, 2, 0.1]], "resume": []},
        {"seconds": [[1, 1, -0.1]], "resume": []},
        {"seconds": [[1, 1, float("nan")]], "resume": []},
        {"seconds": [[1, 1, 0.1]], "resume": [[1, float("inf")]]},
        {"seconds": [[float("inf"), 1, 0.1]], "resume": []},
        {"seconds": [[0, 1, 0.1]], "resume": []},
        {"seconds": [[1, 1, 0.1], [1, 0, 0.1]], "resume": []},
        {"seconds": [[1, 1, 0.1]], "resume": [[0, 0.1]]},
    ],
)
def test_what_is_no_table_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="it "):
        from_document(document)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Stub:
    """A machine on which a step of width 3 costs `now` plain steps, and measurements scatter as told."""

    def __init__(self, now: Sequence[float] = (2.0,), scatter: Sequence[float] = (0.0,), doubt: float = 0.0):
        """The last value of each goes on for ever. doubt: scatter of checks."""
        self._now, self._scatter, self._doubt = list(now), list(scatter), doubt
        self.measured: list[StepCosts] = []
        self.checked: list[int] = []
        self.told: list[str] = []

    def measure(self, what: str = "measuring") -> Measurement:
        self.told.append(what)
        scale = 1.0 + len(self.measured)  # to tell tables apart
        costs = StepCosts({key: scale * cost for key, cost in TABLE.seconds.items()}, TABLE.resume)
        self.measured.append(costs)
        return Measurement(costs, self._scatter.pop(0) if self._scatter[1:] else self._scatter[0])

    def ratio(self, width: int, what: str = "checking") -> Ratio:
        self.told.append(what)
        self.checked.append(width)
        return Ratio(self._now.pop(0) if self._now[1:] else self._now[0], self._doubt)


def kept(key: dict[str, Any], widest: float = 0.02) -> Path:
    """A cached table in which a step of width 3 takes `widest` seconds, and a plain one 0.01."""
    place = cached_file(key)
    place.parent.mkdir(parents=True, exist_ok=True)
    seconds = {**TABLE.seconds, (1, 3): widest}
    place.write_text(json.dumps(as_document(StepCosts(seconds, TABLE.resume), key)) + "\n\n")
    return place


def test_measured_once_then_cached_by_circumstances(cache: Path) -> None:
    stub = Stub()
    for key in ({"threads": 1}, {"threads": 1}, {"threads": 2}):
        costs_from("cached", key, (1, 3), stub)
    assert len(stub.measured) == 2
    assert stub.checked == [3]
    assert costs_from("measure", {"threads": 1}, (1, 3), stub) == stub.measured[2]
    assert len(stub.measured) == 3
    assert stub.checked == [3]
    assert cached_file({"threads": 1}).is_relative_to(cache)
    assert not list(cache.rglob("*.partial"))


@pytest.mark.parametrize(
    "damage", ["", "{", '{"seconds": [[1, 1, 0.1]], "resume": []}', "\x00\x01", "[" * 100_000]
)
def test_a_damaged_or_lacking_cache_is_measured_again_with_a_warning(
    cache: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = cached_file({})
    place.parent.mkdir(parents=True)
    place.write_text(damage)
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), Stub()) == TABLE
    assert "measured again" in caplog.text
    assert from_document(json.loads(place.read_text())) == TABLE


def test_a_cache_that_cannot_be_written_costs_a_warning_only(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where a folder is needed")
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), Stub()) == TABLE
    assert "cannot be kept" in caplog.text


def test_a_given_file_has_to_be_there_and_to_hold_the_widths(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(as_document(TABLE)))
    stub = Stub(now=(9.0,))
    assert costs_from(str(file), {}, (1, 3), stub) == TABLE
    with pytest.raises(UserError, match=r"step_costs=.*width 4, 5.*step_costs=cached"):
        costs_from(str(file), {}, (1, 3, 4, 5), stub)
    with pytest.raises(UserError, match="No such file"):
        costs_from(str(tmp_path / "absent.json"), {}, (1,), stub)
    assert not stub.measured
    assert not stub.checked, "a pinned table repeats a run: it is used as it is"


@pytest.mark.parametrize("widest", [0.01, 0.04, 0.02 * (1 + TOLERANCE) * 1.01, 0.02 / (1 + TOLERANCE) / 1.01])
def test_a_false_table_is_noticed_and_replaced(
    cache: Path, widest: float, caplog: pytest.LogCaptureFixture
) -> None:
    place, stub = kept({}, widest), Stub()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == stub.measured[0]
    (record,) = caplog.records
    assert str(place) in record.message
    assert f"width 3 costs {widest / 0.01:.2f} plain steps there and 2.00 now" in record.message
    assert from_document(json.loads(place.read_text())) == stub.measured[0]
    caplog.clear()
    assert costs_from("cached", {}, (1, 3), stub) == stub.measured[0]
    assert not caplog.records
    assert len(stub.measured) == 1


@pytest.mark.parametrize(
    ("now", "doubt", "looks"),
    [
        ((2.0,), 0.0, 1),
        ((2.0 * (1 + TOLERANCE) * 0.99,), 0.0, 1),
        ((2.0 / (1 + TOLERANCE) * 1.01,), 0.0, 1),
        ((4.0, 2.0), 0.0, 2),
        ((4.0,), 1.0, 1),
    ],
    ids=["right", "a little dearer", "a little cheaper", "one disturbed look", "checks that scatter"],
)
def test_a_right_table_is_kept_bit_for_bit(
    cache: Path, now: tuple[float, ...], doubt: float, looks: int, caplog: pytest.LogCaptureFixture
) -> None:
    place, stub = kept({}), Stub(now, doubt=doubt)
    before = place.read_bytes(), place.stat().st_mtime_ns, place.stat().st_ino
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == TABLE
    assert (place.read_bytes(), place.stat().st_mtime_ns, place.stat().st_ino) == before
    assert stub.checked == [3] * looks
    assert not stub.measured
    assert not caplog.records


@pytest.mark.parametrize("older", [None, 0.08])
@pytest.mark.parametrize("choice", ["cached", "measure"])
def test_a_measurement_that_scatters_twice_serves_the_run_and_is_not_kept(
    cache: Path, choice: str, older: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    stub = Stub(scatter=(2 * STEADY, 3 * STEADY))
    text = None if older is None else kept({}, older).read_text()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from(choice, {}, (1, 3), stub) == stub.measured[0], "the steadier one"
    assert len(stub.measured) == 2
    assert len(set(stub.told)) == len(stub.told), "no progress begins a second time"
    assert "are not kept" in caplog.records[-1].message
    assert "by 50%, more than 25%" in caplog.records[-1].message
    place = cached_file({})
    assert (place.read_text() if place.exists() else None) == text


def test_a_second_measurement_that_is_steady_is_kept(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    stub = Stub(scatter=(2 * STEADY, STEADY))
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == stub.measured[1]
    assert from_document(json.loads(cached_file({}).read_text())) == stub.measured[1]
    assert not caplog.records


def test_a_cache_file_that_cannot_be_read_loses_nothing(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = cached_file({})
    (place / "inside").mkdir(parents=True)
    stub = Stub()
    with caplog.at_level(logging.WARNING, "syncless"):
        assert costs_from("cached", {}, (1, 3), stub) == stub.measured[0]
    read, write = (record.message for record in caplog.records)
    assert "cannot be used (Is a directory); they are measured again" in read
    assert "cannot be kept" in write
    assert (place / "inside").is_dir()
