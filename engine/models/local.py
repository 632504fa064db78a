"""A model of the user's: a folder of safetensors, a GGUF file, or a hub id.

Knows where to look, not what is inside.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from engine.errors import UserError
from engine.models import gguf_shape
from engine.models.checkpoint import weight_files
from engine.models.files import sha256_of
from engine.models.gguf_file import GgufFile
from engine.models.hf_config import read_json, shape_from_config
from engine.models.hub import cached_snapshot, fetch_snapshot, is_hub_id
from engine.models.shape import ModelShape
from engine.models.source import ModelSource, Progress, silent

if TYPE_CHECKING:
    from engine.models.base import LoadedModel

_FORMS = "a folder with config.json, a .gguf file, or a hub id such as owner/name"

_BESIDES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


class LocalModel(ModelSource):
    """model.path decides: what exists on disk is taken as a path, else owner/name as a hub id."""

    name: ClassVar[str] = "model=local"

    def __init__(self, config: ModelSource.Config) -> None:
        super().__init__(config)
        if not config.path:
            raise UserError(f"model=local needs model.path: {_FORMS}")
        self._path = config.path

    def shape(self) -> ModelShape | None:
        place = self._on_disk()
        if place is None:
            return None
        if place.is_file():
            return gguf_shape.shape_of(GgufFile(place))
        return shape_from_config(read_json(place / "config.json"), str(place / "config.json"))

    def packs_int4(self) -> bool:
        place = self._on_disk()
        return place is not None and place.is_file() and gguf_shape.packs_int4(GgufFile(place))

    def load(self, device: str, dtype: str, progress: Progress = silent) -> LoadedModel:
        place = self._on_disk()
        if place is None or (self._is_hub() and not _is_whole(place)):
            place = fetch_snapshot(self._path, progress)
        if place.is_file():
            return self._load_gguf(place, device, dtype, progress)
        return self._load_folder(place, device, dtype, progress)

    def _on_disk(self) -> Path | None:
        """The GGUF file or the folder; None for a hub id that is not cached."""
        path = Path(self._path).expanduser()
        if path.is_dir():
            return _model_in(path)
        if path.is_file():
            return _checked_file(path)
        if self._is_hub():
            return cached_snapshot(self._path)
        raise UserError(f"model.path={self._path} does not exist; give {_FORMS}")

    def _is_hub(self) -> bool:
        return is_hub_id(self._path) and not Path(self._path).expanduser().exists()

    def _load_gguf(self, path: Path, device: str, dtype: str, progress: Progress) -> LoadedModel:
        from engine.models.loading import gguf_tokenizer, load_gguf, load_random

        file = GgufFile(path)
        shape = gguf_shape.shape_of(file)
        if self.config.load == "dummy":
            return load_random(shape, self.config.seed, device, dtype, gguf_tokenizer(file))
        return load_gguf(file, shape, device, dtype, progress)

    def _load_folder(self, folder: Path, device: str, dtype: str, progress: Progress) -> LoadedModel:
        from engine.models.loading import load_files, load_random
        from engine.models.safetensors_reader import SafetensorsReader
        from engine.text.tokenizer import load_tokenizer_folder

        config = read_json(folder / "config.json")
        shape = shape_from_config(config, str(folder / "config.json"))
        tokenizer = load_tokenizer_folder(folder)
        eos_ids = _eos_ids(folder, config) or tokenizer.eos_ids
        if self.config.load == "dummy":
            loaded = load_random(shape, self.config.seed, device, dtype, tokenizer, eos_ids=eos_ids)
        else:
            reader = SafetensorsReader(folder)
            loaded = load_files(shape, reader, device, dtype, tokenizer, eos_ids, progress)
        return replace(loaded, files={**loaded.files, **_text_files(folder)})


def _model_in(folder: Path) -> Path:
    """The folder itself when it has a config.json, else its only GGUF file."""
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    several = f"it holds {len(files)} .gguf files, give one of them: {', '.join(f.name for f in files[:6])}"
    raise UserError(f"model.path={folder} holds no config.json; {several if files else 'give ' + _FORMS}")


def _checked_file(path: Path) -> Path:
    if path.suffix.lower() != ".gguf":
        raise UserError(f"model.path={path} is no .gguf file; give {_FORMS}")
    return path


def _text_files(folder: Path) -> dict[str, str]:
    """SHA-256 of what decides on shape, tokens, prompts and ends besides the weights."""
    kept = (folder / name for name in _BESIDES)
    return {path.name: sha256_of(path) for path in kept if path.is_file()}


def _is_whole(folder: Path) -> bool:
    try:
        return bool(weight_files(folder)) and (folder / "tokenizer.json").is_file()
    except UserError:
        return False


def _eos_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """generation_config.json speaks first: chat models name the end of a turn there."""
    generation = folder / "generation_config.json"
    sources = ([read_json(generation)] if generation.is_file() else []) + [config]
    for source in sources:
        found = source.get("eos_token_id")
        if found is not None:
            return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
