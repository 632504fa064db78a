"""A draft of seeded random weights, for studies and tests without a checkpoint. Knows no file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine.models.weights import DummyWeights
from speculative.base import DraftTarget
from speculative.eagle3 import names
from speculative.eagle3.build import build_draft
from speculative.eagle3.derived import derived_shape
from speculative.eagle3.draft import Eagle3Draft
from speculative.eagle3.fit import fit_to
from speculative.eagle3.shape import Eagle3Shape


def random_draft(target: DraftTarget, seed: int, **sizes: Any) -> Eagle3Draft:
    """A draft for `target` whose weights depend on seed and sizes only, never on the device.

    sizes: fields of Eagle3Shape, and of its layer (a ModelShape), that differ from the target's.
    """
    shape = derived_shape(target.shape, **sizes)
    shape = fit_to(shape, target.shape, target.name, "the random draft")
    return build_draft(shape, RandomWeights(shape, seed), target)


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
