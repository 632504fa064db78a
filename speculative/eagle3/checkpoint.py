"""Opens a published EAGLE3 checkpoint: safetensors or .bin, in the layout of SGLang, vLLM or SpecForge.

Knows the files and their spellings; what the tensors are for is the builder's matter.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import UserError
from engine.models.checkpoint import INDEX, SINGLE
from engine.models.hf_config import read_json
from engine.models.safetensors_reader import FLOATS, SafetensorsReader
from engine.models.weights import WeightReader
from speculative.base import DraftTarget
from speculative.eagle3 import names
from speculative.eagle3.build import build_draft
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.fit import fit_to
from speculative.eagle3.shape import parse_shape
from speculative.eagle3.source import CONFIG, PICKLED

READABLE = (*FLOATS, "I64", "I32", "I16", "U8", "BOOL")  # d2t and t2d are no floats
_FORMS = f"a folder with {CONFIG} and {SINGLE} or {PICKLED}, or one of these weight files beside its {CONFIG}"


def load_draft(path: str | Path, target: DraftTarget) -> Eagle3Draft:
    """The draft at `path`, a folder or a weight file, for `target`.

    Raises UserError when it is not there, not whole, no EAGLE3 draft, or the draft of another target.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise UserError(f"the draft {place} does not exist; give {_FORMS}")
    reader = open_weights(place)
    names.refuse_plain_eagle(reader.shapes, reader.where)
    config = (place if place.is_dir() else place.parent) / CONFIG
    shape = fit_to(parse_shape(read_json(config), str(config)), target.shape, target.name, str(config))
    names.check_tensors(shape, reader.shapes, reader.where)
    return build_draft(shape, reader, target)


def open_weights(place: Path) -> WeightReader:
    """The tensors of a folder or file under their published names."""
    pickled = place / PICKLED if place.is_dir() else place
    safe = place.is_dir() and any((place / name).is_file() for name in (SINGLE, INDEX))
    if place.suffix == ".safetensors" or safe or not pickled.is_file():
        return PublishedNames(SafetensorsReader(place, READABLE))
    if pickled.suffix not in (".bin", ".pt", ".pth"):
        raise UserError(f"{place} is no weight file of a draft; give {_FORMS}")
    return PublishedNames(PickledReader(pickled))


class PublishedNames(WeightReader):
    """Another reader's tensors under the published names."""

    def __init__(self, stored: WeightReader) -> None:
        self._stored = stored
        self._names = names.canonical(stored.shapes, stored.where)
        self.where, self.files = stored.where, stored.files
        self.shapes = {name: stored.shapes[theirs] for name, theirs in self._names.items()}

    def read(self, name: str) -> Tensor:
        tensor = self._stored.read(self._names[name])
        if name in (names.D2T, names.T2D):
            return tensor
        if not tensor.is_floating_point():
            raise UserError(
                f"{self.where}: tensor {self._names[name]} is stored as {tensor.dtype}, it has to hold floats"
            )
        if not tensor.sum(dtype=torch.float32).isfinite():  # text would stay right, and no draft be accepted
            raise UserError(
                f"{self.where}: tensor {self._names[name]} holds values that are no finite numbers; "
                "the training diverged or the file is damaged: take another checkpoint"
            )
        return tensor


class PickledReader(WeightReader):
    """A .bin file, read without running what it may contain. Raises UserError when it is cut or broken."""

    def __init__(self, path: Path) -> None:
        self.where, self.files = str(path), (path,)
        self._tensors = _load(path)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


def _load(path: Path) -> Mapping[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than tensors, or is broken; only a file that torch.load reads with "
            f"weights_only=True is taken, others may run code"
        ) from error
    except Exception as error:  # a broken pickle fails in whatever way its bytes lead to
        raise UserError(
            f"{path} is truncated or no PyTorch weight file ({path.stat().st_size} bytes)"
        ) from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} holds no plain mapping of names to tensors")
    return found
