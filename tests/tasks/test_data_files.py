"""Data sets from the hub's cache and from Parquet: what is read, and what is said where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from workload_cases import items, workload

from engine.errors import UserError
from engine.workloads.base import WorkItem


def cached(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """A data set owner/set in a cache of the hub's client, as it leaves one."""
    monkeypatch.setenv("HF_HUB_CACHE", str(home))
    folder = home / "datasets--owner--set"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / name).write_text(text)


def test_a_hub_id_in_the_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(tmp_path, monkeypatch, "test.jsonl", '{"question": "a"}\n')
    assert items("workload=gsm8k", "path=owner/set") == [WorkItem(prompt="a")]


def test_a_hub_id_that_is_not_here_is_judged_by_what_could_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"workload\.path=owner/set is neither.*pip install huggingface_hub"):
        workload("workload=gsm8k", "path=owner/set")


def test_a_failed_download_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no route\nto the hub")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "snapshot_download", fail)
    found = workload("workload=gsm8k", "path=owner/set")
    with pytest.raises(UserError) as caught:
        found.fetch()
    assert str(caught.value).startswith("workload.path=owner/set could not be fetched (no route);")


def test_a_data_set_without_such_a_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(UserError, match=r"has no file main/test-\*\.parquet or test\.jsonl"):
        workload("workload=gsm8k", "path=owner/set").fetch()


def test_parquet_is_read_where_its_reader_is_installed(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"question": ["a", "b"]}), tmp_path / "w.parquet")
    assert [i.prompt for i in items("workload=gsm8k", f"path={tmp_path / 'w.parquet'}")] == ["a", "b"]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        items("workload=gsm8k", f"path={tmp_path / 'broken.parquet'}")


def test_parquet_without_its_reader_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "w.parquet").touch()
    with pytest.raises(UserError, match="pip install pyarrow, or give a JSONL file"):
        items("workload=gsm8k", f"path={tmp_path / 'w.parquet'}")
