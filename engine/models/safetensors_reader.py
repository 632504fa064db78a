"""Tensors of a folder of safetensors files: one file, or the shards that an index names and no others.

Knows the container and its index, nothing of what the tensors are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import UserError
from engine.models.checkpoint import TensorInfo, header_of, weight_files
from engine.models.weights import WeightReader

_READABLE = ("F64", "F32", "F16", "BF16")


class SafetensorsReader(WeightReader):
    """Reads one tensor at a time. Raises UserError for absent, truncated or quantised files."""

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self.files = tuple(weight_files(folder))
        self._home: dict[str, Path] = {}
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        found: dict[str, tuple[int, ...]] = {}
        for path in self.files:
            for name, info in header_of(path).items():
                found[name] = self._checked(name, info, path)
                self._home[name] = path
        self.shapes = found

    def read(self, name: str) -> Tensor:
        path = self._home[name]
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: tensor {name} cannot be read ({error})") from error
        return tensor

    def _checked(self, name: str, info: TensorInfo, path: Path) -> tuple[int, ...]:
        if name in self._home:
            raise UserError(f"{path} and {self._home[name]} both hold the tensor {name}")
        if info.dtype not in _READABLE:
            raise UserError(
                f"{path}: tensor {name} is stored as {info.dtype}, which cannot be read; "
                f"readable are {', '.join(_READABLE)}"
            )
        return info.shape
