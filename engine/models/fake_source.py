"""`model=fake`: the model without arithmetic, as a choice of the `model` group. Knows no file and no
weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from engine.build import number
from engine.errors import UserError
from engine.models.shape import ModelShape
from engine.models.source import ModelSource, Progress, silent
from engine.models.tiny import BYTE_VOCABULARY

if TYPE_CHECKING:
    from engine.models.base import LoadedModel


class FakeModel(ModelSource):
    """Next tokens are hashes of the whole cached prefix: what remains of a run's time is the engine's own."""

    name: ClassVar[str] = "model=fake"
    shows_states = False  # it has none
    stops_for_attention = False  # it reads the pool itself

    @dataclass(frozen=True)
    class Config(ModelSource.Config):
        """vocab: at least the bytes and three special tokens."""

        vocab: int = number(BYTE_VOCABULARY, ge=BYTE_VOCABULARY)
        max_positions: int = number(4096, ge=1)

    config: FakeModel.Config

    def __init__(self, config: FakeModel.Config) -> None:
        super().__init__(config)
        if config.path is not None:
            raise UserError(f"model.path={config.path}: model=fake reads no file; use model=local for one")

    def shape(self) -> ModelShape:
        return ModelShape("fake", self.config.vocab, 1, 1, 1, 1, 1, 1, self.config.max_positions)

    def packs_int4(self) -> bool:
        return False

    def load(self, device: str, dtype: str, progress: Progress = silent) -> LoadedModel:
        import torch

        from engine.models.base import LoadedModel
        from engine.models.fake import FakeLM
        from engine.text.bytes_tokenizer import ByteTokenizer

        tokenizer = ByteTokenizer(self.config.vocab)
        model = FakeLM(self.shape(), torch.device(device))
        return LoadedModel(model, tokenizer, tuple(tokenizer.eos_ids), {})
