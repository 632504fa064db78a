"""The code of a run: one hash in a checkout and in a wheel, and a difference that makes it again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.code_state import PACKAGE_ROOT, code_diff, code_files, code_hash, git_state


def git(where: Path, *arguments: str, text: str | None = None) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(
        ["git", "-C", str(where), *identity, *arguments],
        check=True,
        capture_output=True,
        input=text,
        text=True,
    )
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    for name, text in (
        ("engine/a.py", "one\ntwo\n"),
        ("engine/gone.py", "x\n"),
        ("conf/config.yaml", "a: 1\n"),
        ("pyproject.toml", ""),
        ("docs/page.md", "text\n"),
        (".gitignore", "outputs/\n"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "x")
    return root


def test_a_difference_makes_the_code_again(checkout: Path, tmp_path: Path) -> None:
    """Changed, deleted, new, binary, oddly named: applied to the commit, it gives the same hash."""
    (checkout / "engine/a.py").write_text("one\nzwei ünï\n")
    (checkout / "engine/gone.py").unlink()
    (checkout / "engine/new folder").mkdir()
    (checkout / "engine/new folder/näme.py").write_text("new\n")
    (checkout / "conf/raw.json").write_bytes(b"\x00\x01\xff binary")
    (checkout / "docs/page.md").write_text("not code\n")
    before = git(checkout, "status", "--porcelain")
    diff = code_diff(checkout)
    assert git(checkout, "status", "--porcelain") == before, "the index is left as it was"
    clean = tmp_path / "clean"
    git(tmp_path, "clone", "-q", str(checkout), str(clean))
    code_files.cache_clear()
    assert code_hash(code_files(clean)) != code_hash(code_files(checkout))
    code_files.cache_clear()
    git(clean, "apply", "-", text=diff)
    assert code_files(clean) == code_files(checkout)
    assert (clean / "conf/raw.json").read_bytes() == b"\x00\x01\xff binary"
    assert (clean / "docs/page.md").read_text() == "text\n"


def test_a_clean_checkout_and_a_folder_without_git_have_none(checkout: Path, tmp_path: Path) -> None:
    (checkout / "docs/page.md").write_text("dirty, but not in the code\n")
    assert (git_state(checkout) or {})["dirty"]
    assert code_diff(checkout) == ""
    bare = tmp_path / "bare"
    shutil.copytree(checkout / "engine", bare / "engine")
    assert code_diff(bare) == ""


def test_staged_changes_count(checkout: Path) -> None:
    (checkout / "engine/a.py").write_text("staged\n")
    (checkout / "engine/b.py").write_text("new and staged\n")
    git(checkout, "add", "-A")
    diff = code_diff(checkout)
    assert "+staged" in diff
    assert "+new and staged" in diff


def test_the_hash_sees_names_and_contents() -> None:
    base = {"a": "1", "b": "2"}
    assert code_hash(base) == code_hash(dict(reversed(base.items())))
    assert (
        len({code_hash(files) for files in (base, {"a": "2", "b": "1"}, {"a": "1"}, {"a": "1", "c": "2"})})
        == 4
    )


def test_every_file_of_the_package_counts() -> None:
    found = code_files(PACKAGE_ROOT)
    assert {"engine/step.py", "conf/config.yaml", "engine/workloads/prompts.jsonl"} <= set(found)
    assert not [name for name in found if name.endswith((".pyc", ".safetensors"))]
    assert not [name for name in found if not (PACKAGE_ROOT / name).is_file()]
