"""A draft of seeded random weights, for studies and tests without a checkpoint. Knows no file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.errors import UserError
from engine.models.shape import ModelShape
from engine.models.weights import DummyWeights
from speculative.base import DraftTarget
from speculative.eagle3 import names
from speculative.eagle3.build import build_draft
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.fit import fit_to, usual_layers
from speculative.eagle3.shape import AuxStates, Eagle3Shape


def random_draft(target: DraftTarget, seed: int, **sizes: Any) -> Eagle3Draft:
    """A draft for `target` whose weights depend on seed and sizes only, never on the device.

    sizes: fields of Eagle3Shape, and of its layer (a ModelShape), that differ from the target's.
    """
    shape = derived_shape(target.shape, **sizes)
    shape = fit_to(shape, target.shape, target.name, "the random draft")
    return build_draft(shape, RandomWeights(shape, seed), target)


def derived_shape(target: ModelShape, **sizes: Any) -> Eagle3Shape:
    """The target's sizes, one layer, a quarter of its vocabulary, its early, middle and late states."""
    layer_fields, own_fields = set(ModelShape.__dataclass_fields__), set(Eagle3Shape.__dataclass_fields__)
    unknown = sizes.keys() - layer_fields - own_fields
    if unknown:
        raise UserError(f"a random draft has no size {', '.join(sorted(unknown))}")
    plain = {"architecture": "EAGLE3", "num_layers": 1, "tied": False, "qkv_bias": False, "qk_norm": False}
    plain |= {"o_bias": False, "sliding_window": None}
    layer = replace(target, **{**plain, **{k: v for k, v in sizes.items() if k in layer_fields}})
    layers = _spread_layers(target.num_layers)
    shape = Eagle3Shape(
        layer=layer,
        draft_vocab=max(1, target.vocab_size // 4),
        target_hidden=target.hidden_size,
        aux=AuxStates(len(layers), layers),
    )
    return replace(shape, **{k: v for k, v in sizes.items() if k in own_fields})


def _spread_layers(num_layers: int) -> tuple[int, ...]:
    """The usual layers, or those that a target too shallow for them has."""
    usual = usual_layers(num_layers)
    if 0 < usual[0] < usual[1] < usual[2]:
        return usual
    return tuple(sorted({1, max(1, num_layers // 2), num_layers}))


class RandomWeights(DummyWeights):
    """Every tensor that a checkpoint of `shape` holds, and a map of the draft's vocabulary."""

    def __init__(self, shape: Eagle3Shape, seed: int) -> None:
        shapes = names.required_tensors(shape)
        if shape.draft_vocab is not None:
            shapes[names.D2T] = (shape.draft_vocab,)
        super().__init__(shapes, seed)
        self.where = "the random draft"
        self._vocab = shape.layer.vocab_size

    def read(self, name: str) -> Tensor:
        if name != names.D2T:
            return super().read(name)
        size = self.shapes[name][0]
        ids = torch.randperm(self._vocab, generator=self._generator(name))[:size].sort().values
        return ids - torch.arange(size)
