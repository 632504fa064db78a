"""NVRTC, the compiler library that torch's CUDA builds bring along, by ctypes. Knows no source, no cache."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_WHEELS = ("nvidia.cu13", "nvidia.cuda_nvrtc")  # packages with a folder `lib`, of CUDA 13 and 12
_USED = (
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcDestroyProgram",
)
_LOG_LINES = 12
_LOCK = threading.Lock()


class CudaCompileError(RuntimeError):
    """A CUDA source did not compile, or there is no NVRTC: the first lines of its log."""


@dataclass(frozen=True)
class Built:
    """Machine code of one source, and what the compiler said beside it ("" if nothing)."""

    cubin: bytes
    log: str


class Compiler:
    """An NVRTC library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def build(self, text: str, name: str, arch: str) -> Built:
        """Compile `text` for `arch` ("sm_90a"); `name` stands for it in messages. Raises CudaCompileError."""
        program = ctypes.c_void_p()
        call = self._library
        code = call.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), name.encode(), ctypes.c_int(0), None, None
        )
        if code:
            raise CudaCompileError(f"NVRTC made no program of {name} (error {code})")
        try:
            options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
            code = call.nvrtcCompileProgram(
                program, ctypes.c_int(len(options)), (ctypes.c_char_p * len(options))(*options)
            )
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            if code:
                first = "\n".join(log.splitlines()[:_LOG_LINES])
                raise CudaCompileError(f"NVRTC refused {name} for {arch} (error {code}):\n{first}")
            return Built(self._read(program, "CUBIN"), log)
        finally:
            call.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        code = getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(size.value, 1))
        code = code or getattr(self._library, f"nvrtcGet{what}")(program, text)
        if code:
            raise CudaCompileError(f"NVRTC did not hand out its {what} (error {code})")
        return text.raw[: size.value]


def _candidates() -> Iterator[str]:
    """Where a library may be: on the path of torch's CUDA build, then in NVIDIA's wheels."""
    if torch.version.cuda:
        yield f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    for package in _WHEELS:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield from map(str, sorted(Path(folder, "lib").glob("libnvrtc.so.*")))


def _opened(path: str) -> Any:
    """The library at `path`; in a wheel's folder its built-ins first, which it looks for by name alone."""
    for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")) if "/" in path else ():
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(path)
    for name in _USED:
        getattr(library, name)
    return library


@functools.cache
def _found() -> Compiler | str:
    tried = []
    for path in _candidates():
        try:
            return Compiler(_opened(path))
        except (OSError, AttributeError) as error:
            tried.append(f"{path}: {error}")
    return "; ".join(tried) or "neither this build of torch nor a wheel (nvidia-cuda-nvrtc) has it"


def missing() -> str:
    """Why there is no NVRTC, or "" where there is one."""
    found = _opened_once()
    return found if isinstance(found, str) else ""


def compiler() -> Compiler:
    """The NVRTC of this process. Raises CudaCompileError where there is none."""
    found = _opened_once()
    if isinstance(found, str):
        raise CudaCompileError(f"NVRTC cannot be loaded: {found}")
    return found


def _opened_once() -> Compiler | str:
    with _LOCK:
        return _found()
