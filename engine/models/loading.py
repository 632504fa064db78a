"""The torch side of loading: from a reader, or from nothing, to a LoadedModel. Knows no concrete source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.models.base import LoadedModel
from engine.models.build import build_llama
from engine.models.files import sha256_of
from engine.models.gguf_file import GgufFile
from engine.models.gguf_reader import GgufReader
from engine.models.names import expected_tensors
from engine.models.shape import ModelShape
from engine.models.source import Progress, silent
from engine.models.weights import DummyWeights, WeightReader
from engine.text.base import Tokenizer
from engine.text.gguf_tokenizer import tokenizer_from_metadata


def load_random(
    shape: ModelShape,
    seed: int,
    device: str,
    dtype: str,
    tokenizer: Tokenizer,
    *,
    make_on: str | None = None,
    eos_ids: tuple[int, ...] | None = None,
) -> LoadedModel:
    """Seeded random weights of `shape`, drawn on `make_on` (default: the device, fast for large models)."""
    weights = DummyWeights(expected_tensors(shape), seed, make_on or device, blocks=dtype == "int4")
    model = build_llama(shape, weights, dtype, device)
    return LoadedModel(model, tokenizer, tokenizer.eos_ids if eos_ids is None else eos_ids)


def load_files(
    shape: ModelShape,
    reader: WeightReader,
    device: str,
    dtype: str,
    tokenizer: Tokenizer,
    eos_ids: tuple[int, ...],
    progress: Progress = silent,
    known: Mapping[Path, str] | None = None,
) -> LoadedModel:
    """The reader's weights; hashes of its files are computed beside the reading, save those in `known`."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        hashes = pool.submit(_hashes, reader.files, known or {})
        model = build_llama(shape, reader, dtype, device, progress)
        return LoadedModel(model, tokenizer, eos_ids, hashes.result())


def _hashes(files: Iterable[Path], known: Mapping[Path, str]) -> dict[str, str]:
    return {path.name: known.get(path) or sha256_of(path) for path in files}


def load_gguf(
    file: GgufFile,
    shape: ModelShape,
    device: str,
    dtype: str,
    progress: Progress = silent,
    known: Mapping[Path, str] | None = None,
) -> LoadedModel:
    """Everything a GGUF file holds: weights, tokenizer, end-of-sequence ids."""
    tokenizer = gguf_tokenizer(file)
    reader = GgufReader(file, shape)
    return load_files(shape, reader, device, dtype, tokenizer, tokenizer.eos_ids, progress, known)


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of the file's metadata; it knows which ids end a text or a turn."""
    fields = {name: field.value for name, field in file.fields.items() if name.startswith("tokenizer.")}
    return tokenizer_from_metadata(fields)
