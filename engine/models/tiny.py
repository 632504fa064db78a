"""A small model with seeded random weights and a byte tokenizer: no file, instant, for tests.

Knows nothing of checkpoints; its numbers are its config.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from engine.build import number
from engine.errors import UserError
from engine.models.scaling import check_scaling
from engine.models.shape import ModelShape
from engine.models.source import ModelSource, Progress, silent

if TYPE_CHECKING:
    from engine.models.base import LoadedModel

BYTE_VOCABULARY = 259  # 256 bytes, begin, end, padding


class TinyModel(ModelSource):
    """Random weights of the configured sizes; int4 packs random 4-bit blocks."""

    name: ClassVar[str] = "model=tiny"

    @dataclass(frozen=True)
    class Config(ModelSource.Config):
        """Sizes of the model; rope_scaling takes a checkpoint's mapping."""

        layers: int = number(3, ge=1)
        hidden: int = number(64, ge=8)
        heads: int = number(4, ge=1)
        kv_heads: int = number(2, ge=1)
        head_dim: int = number(16, ge=2)
        intermediate: int = number(128, ge=1)
        vocab: int = number(512, ge=BYTE_VOCABULARY)
        max_positions: int = number(4096, ge=1)
        rope_theta: float = number(10000.0, gt=0)
        rope_scaling: dict[str, Any] = field(default_factory=dict)
        tied: bool = False
        qkv_bias: bool = False
        qk_norm: bool = False

    config: TinyModel.Config

    def __init__(self, config: TinyModel.Config) -> None:
        super().__init__(config)
        if config.path is not None:
            raise UserError(f"model.path={config.path}: model=tiny reads no file; use model=local for one")
        if config.heads % config.kv_heads:
            raise UserError(
                f"model.heads={config.heads} is no multiple of model.kv_heads={config.kv_heads}; "
                f"each KV head serves the same number of query heads"
            )
        if config.head_dim % 2:
            raise UserError(f"model.head_dim={config.head_dim} must be even: rotary embedding turns pairs")

        check_scaling(config.rope_scaling, "model.rope_scaling")

    def shape(self) -> ModelShape:
        config = self.config
        return ModelShape(
            architecture="tiny",
            vocab_size=config.vocab,
            hidden_size=config.hidden,
            num_layers=config.layers,
            num_heads=config.heads,
            num_kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate,
            max_positions=config.max_positions,
            rope_theta=config.rope_theta,
            rope_scaling=config.rope_scaling,
            tied=config.tied,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
        )

    def packs_int4(self) -> bool:
        return False

    def load(self, device: str, dtype: str, progress: Progress = silent) -> LoadedModel:
        from engine.models.loading import load_random
        from engine.text.bytes_tokenizer import ByteTokenizer

        # On the CPU whatever the device, so that the weights are the same everywhere.
        tokenizer = ByteTokenizer(self.config.vocab)
        return load_random(self.shape(), self.config.seed, device, dtype, tokenizer, make_on="cpu")
