"""Tensors of a folder of safetensors files: one file, or the shards that an index names and no others.

Knows the container and its index, nothing of what the tensors are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import UserError
from engine.models.checkpoint import TensorInfo, header_of, weight_files
from engine.models.weights import WeightReader

FLOATS = ("F64", "F32", "F16", "BF16")


class SafetensorsReader(WeightReader):
    """Reads one tensor at a time. Raises UserError for absent, truncated or quantised files.

    place: a folder, or one file. readable: dtypes that the tensors may have, as safetensors spells them.
    """

    def __init__(self, place: Path, readable: Sequence[str] = FLOATS) -> None:
        self.where = str(place)
        self.files = (place,) if place.is_file() else tuple(weight_files(place))
        self._readable = readable
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
        if info.dtype not in self._readable:
            raise UserError(
                f"{path}: tensor {name} is stored as {info.dtype}, which cannot be read; "
                f"readable are {', '.join(self._readable)}"
            )
        return info.shape
