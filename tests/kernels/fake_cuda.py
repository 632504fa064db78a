"""The functions of the CUDA driver that the engine calls, with its own C types, as Python callbacks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

P = c_void_p  # handles, and pointers to read from or write to
SIGNATURES: dict[str, list[Any]] = {  # cuda.h
    "cuGetErrorString": [c_int, P],
    "cuCtxGetCurrent": [P],
    "cuCtxSetCurrent": [P],
    "cuDeviceGet": [P, c_int],
    "cuDevicePrimaryCtxRetain": [P, c_int],
    "cuModuleLoadData": [P, c_char_p],
    "cuModuleGetFunction": [P, P, c_char_p],
    "cuFuncSetAttribute": [P, c_int, c_int],
    "cuTensorMapEncodeTiled": [P, c_int, c_uint32, P, P, P, P, P, c_int, c_int, c_int, c_int],
    "cuLaunchKernelEx": [P, P, P, P],
}
CONFIG_BYTES, ATTRIBUTE_BYTES = 56, 72  # CUlaunchConfig, CUlaunchAttribute
ERRORS = {1: b"invalid argument", 201: b"invalid device context", 700: b"an illegal memory access"}


@dataclass(frozen=True)
class Config:
    """How a kernel is launched. attributes: of each its id and the 64 bytes of its value."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    attributes: tuple[tuple[int, bytes], ...]


def config(place: int) -> Config:
    """A CUlaunchConfig: seven numbers, 4 bytes of nothing, stream, attributes, and how many of these."""
    *sizes, shared = read(place, c_uint, 7)
    stream, first = read(place + 32, c_uint64, 2)
    (count,) = read(place + 48, c_uint, 1)
    each = [first + n * ATTRIBUTE_BYTES for n in range(count)]
    attributes = [(read(one, c_int, 1)[0], ctypes.string_at(one + 8, 64)) for one in each]
    return Config(tuple(sizes[:3]), tuple(sizes[3:]), shared, stream, tuple(attributes))


class FakeCuda:
    """A driver. calls: (function, arguments as C sees them); context: this thread's, 0 is none; codes: what a
    function returns instead of success; `on`: what else a function does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.configs: list[Config] = []  # of every launch, read while it was called
        self.codes: dict[str, int] = {}
        self.context = 0xC0
        self.on: dict[str, Callable[..., None]] = {
            "cuGetErrorString": self._error,
            "cuCtxGetCurrent": lambda place: write(place, self.context),
            "cuCtxSetCurrent": lambda context: setattr(self, "context", context),
            "cuDeviceGet": lambda place, ordinal: write(place, ordinal + 10, c_int),
            "cuDevicePrimaryCtxRetain": lambda place, device: write(place, 0xC0 + device),
            "cuModuleLoadData": lambda place, image: write(place, 0xA0),
            "cuModuleGetFunction": lambda place, module, name: write(place, 0xF00000000F),
        }
        self._texts: list[Any] = []
        for name, types in SIGNATURES.items():
            setattr(self, name, ctypes.CFUNCTYPE(c_int, *types)(self._answer(name)))

    def _answer(self, name: str) -> Callable[..., int]:
        def called(*args: Any) -> int:
            self.calls.append((name, args))
            if name == "cuLaunchKernelEx":
                self.configs.append(config(args[0]))
            self.on.get(name, lambda *_: None)(*args)
            return self.codes.get(name, 0)

        return called

    def _error(self, code: int, place: int) -> None:
        text = ctypes.create_string_buffer(ERRORS[code]) if code in ERRORS else None
        self._texts.append(text)
        write(place, ctypes.addressof(text) if text else 0)

    def launches(self) -> list[tuple[Config, tuple[Any, ...]]]:
        """How kernels were launched, and (function, arguments' places, extra)."""
        return [(self.configs[n], args[1:]) for n, args in enumerate(self.of("cuLaunchKernelEx"))]

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of every call of a function."""
        return [args for called, args in self.calls if called == name]


def write(place: int, value: int, kind: Any = c_uint64) -> None:
    kind.from_address(place).value = value


def read(place: int, kind: Any, count: int) -> list[Any]:
    return list((kind * count).from_address(place))
