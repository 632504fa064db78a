"""What lies in a folder of safetensors: which files belong to it, and the header of each. Free of torch."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UserError
from engine.models.hf_config import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_HEADER_LIMIT = 100 << 20  # the format's own limit on its header


@dataclass(frozen=True)
class TensorInfo:
    """dtype as safetensors spells it; shape."""

    dtype: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The files that make up the checkpoint: those of the index if there is one, else the single file.

    Other safetensors files beside them (an adapter, an old export) are not read. Raises UserError when none
    is there, or when a shard of the index is absent.
    """
    index = folder / INDEX
    if index.is_file():
        return _shards(index)
    single = folder / SINGLE
    if single.is_file():
        return [single]
    found = sorted(path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".gguf"))
    there = f"; it holds {', '.join(found)}" if found else ""
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}{there}")


def _shards(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    absent = [name for name in names if not (index.parent / name).is_file()]
    if absent:
        raise UserError(f"{index} names files that are not there: {', '.join(absent)}")
    return [index.parent / name for name in names]


def header_of(path: Path) -> dict[str, TensorInfo]:
    """name -> dtype and shape. Raises UserError, naming file and bytes, for a file that is cut or broken."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _HEADER_LIMIT + 1
        raw = file.read(length) if length <= _HEADER_LIMIT else b""
    if len(raw) < length:
        raise UserError(
            f"{path} is truncated or no safetensors file: its header does not fit in {size} bytes"
        )
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        end = 8 + length + max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        found = {name: TensorInfo(entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path} has a broken safetensors header") from error
    if size != end:
        raise UserError(
            f"{path} is {'truncated' if size < end else 'too long'}: {size} bytes instead of {end}"
        )
    return found
