"""Reads the header of a GGUF file: its metadata and where each tensor lies. Free of torch.

Knows the container format alone (version 2 and 3, little endian), nothing of architectures or tokenizers.
The `gguf` package's own reader takes seconds for a large vocabulary; this one takes milliseconds.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import UserError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True)
class GgufField:
    """One metadata value; the accessor is named as in the `gguf` package, so that either reader serves."""

    value: Any

    def contents(self) -> Any:
        return self.value


@dataclass(frozen=True)
class GgufTensor:
    """shape: outermost dimension first (the file has it the other way round). offset: from the data start."""

    name: str
    shape: tuple[int, ...]
    kind: int  # number of the ggml type
    offset: int


class GgufFile:
    """An open GGUF file; `fields` and `tensors` by name. Raises UserError for what is no whole GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _open_map(path)
        self.fields: dict[str, GgufField] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            self._data_start = self._parse()
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise UserError(
                f"{path} ends or breaks within its GGUF header ({len(self._map)} bytes)"
            ) from error

    def get(self, name: str, default: Any = None) -> Any:
        field = self.fields.get(name)
        return default if field is None else field.value

    def data(self, tensor: GgufTensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's bytes, uint8 [rows, bytes a row], a read-only view of the map."""
        start, row_bytes, size = self._extent(tensor)
        flat = np.frombuffer(self._map, np.uint8, count=size, offset=start)
        return flat.reshape(-1, row_bytes)

    def check_complete(self) -> None:
        """Raise UserError when some tensor lies past the end of the file."""
        for tensor in self.tensors.values():
            start, _, size = self._extent(tensor)
            if start + size > len(self._map):
                raise UserError(
                    f"{self.path} is truncated: tensor {tensor.name} ends at byte {start + size}, "
                    f"the file has {len(self._map)} bytes"
                )

    def _extent(self, tensor: GgufTensor) -> tuple[int, int, int]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
        except (ValueError, KeyError) as error:
            raise UserError(
                f"{self.path}: tensor {tensor.name} has the unknown type {tensor.kind}"
            ) from error
        inner = tensor.shape[-1]
        if inner % block:
            raise UserError(f"{self.path}: rows of {tensor.name} ({inner}) are no multiple of {block}")
        row_bytes = inner // block * block_bytes
        rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
        return self._data_start + tensor.offset, row_bytes, rows * row_bytes

    def _parse(self) -> int:
        cursor = _Cursor(self._map)
        if cursor.take(4) != b"GGUF":
            raise UserError(f"{self.path} is not a GGUF file")
        version = cursor.scalar("I")
        if version not in _VERSIONS:
            raise UserError(
                f"{self.path} is GGUF version {version}; versions 2 and 3, little endian, can be read"
            )
        n_tensors, n_fields = cursor.scalar("Q"), cursor.scalar("Q")
        for _ in range(n_fields):
            name = cursor.string()
            self.fields[name] = GgufField(cursor.value(cursor.scalar("I")))
        for _ in range(n_tensors):
            name = cursor.string()
            dims = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
            self.tensors[name] = GgufTensor(
                name, tuple(reversed(dims)), cursor.scalar("I"), cursor.scalar("Q")
            )
        alignment = int(self.get("general.alignment", 32))
        return -(-cursor.at // alignment) * alignment


def _open_map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:  # an empty file cannot be mapped
        raise UserError(f"{path} is empty (0 bytes)") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


class _Cursor:
    """A position in the bytes of the header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        chunk = self._data[self.at : self.at + count]
        if len(chunk) < count:
            raise ValueError("past the end")
        self.at += count
        return chunk

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        return self.scalar(_SCALARS[kind]) if kind in _SCALARS else _unknown(kind)

    def _array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        if kind in _SCALARS:
            code = f"<{count}{_SCALARS[kind]}"
            return list(struct.unpack(code, self.take(struct.calcsize(code))))
        read: Callable[[], Any] = self.string if kind == _STRING else (lambda: self.value(kind))
        return [read() for _ in range(count)]


def _unknown(kind: int) -> Any:
    raise ValueError(f"metadata type {kind}")
