"""Where NVRTC is found, and how it is called, on libraries that only look like it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.cuda import nvrtc
from kernels.cuda.nvrtc import Compiler, CudaCompileError


class Fake:
    """Answers as NVRTC does; `codes`: what a function returns instead of success."""

    def __init__(self, version: tuple[int, int] = (12, 8), log: bytes = b"\0", **codes: int) -> None:
        self.log, self.cubin, self.codes = log, b"\x7fELF\0machine code\0", codes
        self.calls: list[str] = []
        self.numbers = version

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvrtc"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append(name)
            getattr(self, "_" + name, lambda *_: None)(*args)
            return self.codes.get(name, 0)

        return call

    def _nvrtcVersion(self, major: Any, minor: Any) -> None:  # noqa: N802
        major._obj.value, minor._obj.value = self.numbers

    def _nvrtcCreateProgram(self, program: Any, text: bytes, name: bytes, count: Any, *none: Any) -> None:  # noqa: N802
        program._obj.value = 77
        self.source = (text, name, count.value, none)

    def _nvrtcCompileProgram(self, program: Any, count: Any, options: Any) -> None:  # noqa: N802
        self.options = (program.value, count.value, list(options))

    def _nvrtcGetProgramLogSize(self, program: Any, size: Any) -> None:  # noqa: N802
        size._obj.value = len(self.log)

    def _nvrtcGetProgramLog(self, program: Any, text: Any) -> None:  # noqa: N802
        ctypes.memmove(text, self.log, len(self.log))

    def _nvrtcGetCUBINSize(self, program: Any, size: Any) -> None:  # noqa: N802
        size._obj.value = len(self.cubin)

    def _nvrtcGetCUBIN(self, program: Any, text: Any) -> None:  # noqa: N802
        ctypes.memmove(text, self.cubin, len(self.cubin))


def test_a_program_is_compiled_read_and_given_back() -> None:
    fake = Fake(log=b"a remark\n\0")
    maker = Compiler(fake)
    assert maker.version == (12, 8)
    built = maker.build("text", "name.cu", "sm_90a")
    assert built.cubin == fake.cubin
    assert built.log == "a remark"
    assert fake.source == (b"text", b"name.cu", 0, (None, None))
    assert fake.options == (77, 2, [b"--gpu-architecture=sm_90a", b"--std=c++17"])
    assert fake.calls[-1] == "nvrtcDestroyProgram"


@pytest.mark.parametrize(
    ("function", "said", "made"),
    [
        ("nvrtcCreateProgram", "made no program of name.cu \\(error 6\\)", False),
        ("nvrtcCompileProgram", "refused name.cu for sm_90a \\(error 6\\):\nthe log", True),
        ("nvrtcGetProgramLogSize", "ProgramLog \\(error 6\\)", True),
        ("nvrtcGetProgramLog", "ProgramLog \\(error 6\\)", True),
        ("nvrtcGetCUBINSize", "CUBIN \\(error 6\\)", True),
        ("nvrtcGetCUBIN", "CUBIN \\(error 6\\)", True),
    ],
)
def test_every_refusal_is_raised(function: str, said: str, made: bool) -> None:
    fake = Fake(log=b"the log\0", **{function: 6})
    with pytest.raises(CudaCompileError, match=said):
        Compiler(fake).build("text", "name.cu", "sm_90a")
    assert ("nvrtcDestroyProgram" in fake.calls) == made


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels, empty at first; what was found before is forgotten, and again at the end."""
    found = nvrtc._found.cache_clear
    found()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in _wheels_met():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(torch.version, "cuda", None)
    yield tmp_path
    for name in _wheels_met():
        del sys.modules[name]
    found()


def _wheels_met() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] == "nvidia"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a path opens; all else is missing. Every attempt is kept under "tried"."""
    there: dict[str, Any] = {"tried": []}

    def load(path: str, mode: int = 0) -> Any:
        there["tried"].append(path)
        if path not in there:
            raise OSError(f"{path}: cannot open shared object file")
        return there[path]

    monkeypatch.setattr(nvrtc.ctypes, "CDLL", load)
    return there


def wheel(folder: Path, package: str, *files: str) -> list[str]:
    library = folder / "nvidia" / package / "lib"
    library.mkdir(parents=True)
    for file in files:
        (library / file).touch()
    return [str(library / file) for file in files]


def test_torchs_own_comes_first(
    places: Path, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(places, "cu13", "libnvrtc.so.13")
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    opened["libnvrtc.so.12"] = Fake()
    assert nvrtc.missing() == ""
    assert nvrtc.compiler().version == (12, 8)
    assert opened["tried"] == ["libnvrtc.so.12"]


@pytest.mark.parametrize(("package", "major"), [("cu13", 13), ("cuda_nvrtc", 12)])
def test_a_wheel_is_the_second_place_and_its_builtins_are_loaded_first(
    places: Path, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch, package: str, major: int
) -> None:
    monkeypatch.setattr(torch.version, "cuda", f"{major}.0")
    builtins, main = wheel(places, package, f"libnvrtc-builtins.so.{major}.0", f"libnvrtc.so.{major}")
    opened |= {builtins: object(), main: Fake((major, 0))}
    assert nvrtc.compiler().version == (major, 0)
    assert opened["tried"] == [f"libnvrtc.so.{major}", builtins, main]


def test_a_library_without_a_function_is_passed_over(places: Path, opened: dict[str, Any]) -> None:
    (old,) = wheel(places, "cu13", "libnvrtc.so.13")
    (good,) = wheel(places, "cuda_nvrtc", "libnvrtc.so.12")
    opened |= {old: object(), good: Fake()}
    assert nvrtc.compiler().version == (12, 8)


def test_none_at_all_is_said(places: Path, opened: dict[str, Any]) -> None:
    assert "nvidia-cuda-nvrtc" in nvrtc.missing()
    with pytest.raises(CudaCompileError, match="NVRTC cannot be loaded: neither this build of torch nor"):
        nvrtc.compiler()


def test_what_was_tried_is_said(
    places: Path, opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "libnvrtc.so.13: cannot open shared object file" in nvrtc.missing()
    nvrtc.missing()
    assert opened["tried"] == ["libnvrtc.so.13"]
