"""Which draft a configuration means, and what is known of it before its weights are read. Free of torch.

Knows config.json and shapes; the loader knows the files.
"""

from __future__ import annotations

import math
from pathlib import Path

from engine.errors import UserError
from engine.models.checkpoint import INDEX, SINGLE, weight_files
from engine.models.hf_config import read_json
from engine.models.shape import ModelShape
from speculative.base import DraftMemory
from speculative.eagle3 import names
from speculative.eagle3.card import card_beside, shipped_draft
from speculative.eagle3.derived import derived_shape
from speculative.eagle3.fit import fit_to
from speculative.eagle3.options import REMEMBERED, Options, narrows
from speculative.eagle3.shape import Eagle3Shape, parse_shape

CONFIG = "config.json"
PICKLED = "pytorch_model.bin"
_GROUP = 32  # weights of a 4-bit block
_INT4 = (
    0.5 + 4 / _GROUP + 2
)  # bytes a weight: blocks, their scales and zeros, the bfloat16 copy for wide passes
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


def folder(config: Options, name: str, target: ModelShape) -> Path:
    """The checkpoint to read. UserError when none is given and none ships for the target."""
    if config.draft is not None:
        return Path(config.draft).expanduser()
    shipped = shipped_draft(target)
    if shipped is None:
        raise UserError(
            f"spec=eagle3: no draft comes with the package for {name}; give spec.draft=FOLDER with one that "
            "was trained for it, train one with task=train_eagle3, or use spec=ngram"
        )
    return shipped


def files(config: Options, target: ModelShape) -> tuple[Path, ...]:
    """config.json and the weight files of the draft; none for a random one."""
    if config.load == "dummy":
        return ()
    place = folder(config, "the target", target)
    if place.is_file():
        return place.parent / CONFIG, place
    safe = any((place / name).is_file() for name in (SINGLE, INDEX))
    return place / CONFIG, *(weight_files(place) if safe else [place / PICKLED])


def draft_shape(config: Options, name: str, target: ModelShape) -> Eagle3Shape:
    """The draft's shape, fitted to the target. UserError as from parse_shape, fit_to and folder."""
    if config.load == "dummy":
        return fit_to(derived_shape(target), target, name, "the random draft")
    place = folder(config, name, target)
    if not place.exists():
        raise UserError(
            f"spec.draft={config.draft}: {place} does not exist; give the folder of an EAGLE3 draft"
        )
    file = (place if place.is_dir() else place.parent) / CONFIG
    if not file.is_file():
        raise UserError(f"spec.draft={config.draft}: there is no {file}; give the folder of an EAGLE3 draft")
    return fit_to(parse_shape(read_json(file), str(file)), target, name, str(file))


def expected_acceptance(place: Path) -> tuple[float, ...] | None:
    """See Card.expected; None without a card."""
    card = card_beside(place)
    return None if card is None else card.expected


def problems(config: Options, name: str, target: ModelShape) -> list[str]:
    """What config.json already tells."""
    try:
        draft_shape(config, name, target)
    except UserError as error:
        return str(error).splitlines()
    return []


def memory(config: Options, target: ModelShape, weights: str) -> DraftMemory | None:
    """Bytes from shapes alone; None where the draft is not known."""
    try:
        shape = draft_shape(config, "the target", target)
    except UserError:
        return None
    size = _SIZES["bfloat16" if weights == "int4" else weights]
    layer = shape.layer
    relay = layer.hidden_size * size
    if narrows(config):
        relay += REMEMBERED * shape.states_width * size + 4
    return DraftMemory(weight_bytes(shape, weights), 2 * layer.num_kv_heads * layer.head_dim * size, relay)


def weight_bytes(shape: Eagle3Shape, weights: str) -> int:
    """Of its own matrices, head and vocabulary map excluded where the config does not give their size."""
    return sum(_bytes(name, size, weights) for name, size in names.required_tensors(shape).items())


def _bytes(name: str, size: tuple[int, ...], weights: str) -> int:
    count = math.prod(size)
    if weights != "int4":
        return count * _SIZES[weights]
    packed = len(size) == 2 and name != names.HEAD and size[1] % _GROUP == 0
    return int(count * (_INT4 if packed else _SIZES["bfloat16"]))
