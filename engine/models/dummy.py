"""`model=dummy`: seeded random weights in the shape of a published model, drawn on the device: for measuring.

Speed does not depend on what the weights are; text does. Knows the shapes of a few models and no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.build import choice
from engine.errors import UserError
from engine.models.shape import ModelShape
from engine.models.smollm2 import SHAPE as SMOLLM2
from engine.models.source import ModelSource, Progress, silent

if TYPE_CHECKING:
    from engine.models.base import LoadedModel

SHAPES = {
    "smollm2-135m": SMOLLM2,
    "llama-3.2-1b": ModelShape(
        architecture="llama",
        vocab_size=128256,
        hidden_size=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        intermediate_size=8192,
        max_positions=131072,
        rope_theta=500000.0,
        tied=True,
    ),
    "llama-3.1-8b": ModelShape(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=14336,
        max_positions=131072,
        rope_theta=500000.0,
    ),
}


class DummyModel(ModelSource):
    """A byte tokenizer over the model's whole vocabulary; the weights differ from device to device."""

    name: ClassVar[str] = "model=dummy"

    @dataclass(frozen=True)
    class Config(ModelSource.Config):
        """like: whose shape."""

        like: str = choice("llama-3.1-8b", tuple(SHAPES))

    config: DummyModel.Config

    def __init__(self, config: DummyModel.Config) -> None:
        super().__init__(config)
        if config.path is not None:
            raise UserError(f"model.path={config.path}: model=dummy reads no file; use model=local for one")

    def shape(self) -> ModelShape:
        return SHAPES[self.config.like]

    def packs_int4(self) -> bool:
        return False

    def load(self, device: str, dtype: str, progress: Progress = silent) -> LoadedModel:
        from engine.models.loading import load_random
        from engine.text.bytes_tokenizer import ByteTokenizer

        shape = self.shape()
        return load_random(shape, self.config.seed, device, dtype, ByteTokenizer(shape.vocab_size))
