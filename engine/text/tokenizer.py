"""Tokenizers over the `tokenizers` library, and the loader for a model folder in the usual hub layout.

Knows nothing of weights or GGUF.
"""

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from engine.errors import UserError
from engine.text.base import Tokenizer, TokenizerFacts
from engine.text.byte_symbols import symbols_to_bytes

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_ADDED_OPTIONS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class FastTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer` as Tokenizer.

    byte_level: ordinary tokens are spelled in GPT-2's byte symbols; otherwise in SentencePiece's way,
    with `▁` for a space and `<0xNN>` for a lone byte.
    """

    def __init__(self, inner: tokenizers.Tokenizer, facts: TokenizerFacts, byte_level: bool) -> None:
        added = inner.get_added_tokens_decoder()
        self._added = {token: entry.content for token, entry in added.items()}
        specials = {entry.content: token for token, entry in added.items() if entry.special}
        size = max(inner.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
        super().__init__(facts, size, specials)
        inner.no_truncation()  # files may come with either switched on, which would change prompts silently
        inner.no_padding()
        self._inner = inner
        self._byte_level = byte_level
        self._lock = threading.Lock()  # whether special spellings count is a switch on the shared object

    def _encode(self, text: str, special: bool) -> list[int]:
        with self._lock:
            self._inner.encode_special_tokens = not special
            return self._inner.encode(text, add_special_tokens=False).ids

    def raw_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode("utf-8")
        symbol = self._inner.id_to_token(token)
        if symbol is None:
            return b""
        if self._byte_level:
            return symbols_to_bytes(symbol)
        fallback = _BYTE_FALLBACK.fullmatch(symbol)
        return bytes.fromhex(fallback[1]) if fallback else symbol.replace("▁", " ").encode("utf-8")


def load_tokenizer_folder(path: Path) -> Tokenizer:
    """The tokenizer of a model folder: tokenizer.json, and beside it, where present, tokenizer_config.json,
    special_tokens_map.json, chat_template.jinja and generation_config.json.

    UserError, one sentence, for a missing or unreadable file.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise UserError(
            f"No tokenizer in {path}: tokenizer.json is missing; "
            "put it there from where the weights came from."
        )
    try:
        inner = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for anything wrong in the file
        raise UserError(f"{file} is not a tokenizer that can be read: {error}") from error
    spec = _read_json(file)
    config = {**_read_json(path / "special_tokens_map.json"), **_read_json(path / "tokenizer_config.json")}
    named = {name: _content(config[name]) for name in _NAMES if config.get(name)}
    _add_specials(inner, config, named)
    return FastTokenizer(inner, _folder_facts(path, inner, spec, config, named), _is_byte_level(spec))


def _folder_facts(
    path: Path,
    inner: tokenizers.Tokenizer,
    spec: Mapping[str, Any],
    config: Mapping[str, Any],
    named: Mapping[str, str],
) -> TokenizerFacts:
    bos_id = inner.token_to_id(named["bos_token"]) if "bos_token" in named else None
    stated = config.get("add_bos_token")
    by_processor = bos_id is not None and inner.encode("").ids[:1] == [bos_id]
    eos = [inner.token_to_id(named["eos_token"])] if "eos_token" in named else []
    generation = _read_json(path / "generation_config.json").get("eos_token_id")
    eos += generation if isinstance(generation, list) else [generation]
    return TokenizerFacts(
        eos_ids=tuple(dict.fromkeys(token for token in eos if token is not None)),
        bos_id=bos_id,
        add_bos=by_processor if stated is None else bool(stated),
        chat_template=_chat_template(path, config),
        named=named,
        drops_leading_space=_has_strip(spec.get("decoder")),
    )


def _chat_template(path: Path, config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # named variants; "default" is the one for plain conversations
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template


def _add_specials(inner: tokenizers.Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Register what only the config calls special, so that tokenizer.json and the config tell one story."""
    known = {entry.content for entry in inner.get_added_tokens_decoder().values()}
    extra = [_content(token) for token in _extra_specials(config)]
    entries = (config.get("added_tokens_decoder") or {}).items()
    for _, entry in sorted(entries, key=lambda item: int(item[0])):
        if entry["content"] not in known:
            options = {key: entry[key] for key in _ADDED_OPTIONS if key in entry}
            inner.add_tokens([tokenizers.AddedToken(entry["content"], **options)])
            known.add(entry["content"])
    fresh = [
        tokenizers.AddedToken(text, special=True) for text in (*named.values(), *extra) if text not in known
    ]
    inner.add_special_tokens(fresh)


def _extra_specials(config: Mapping[str, Any]) -> list[Any]:
    """Under its old or its new key; the new one may be a list, or a mapping of names to tokens."""
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    return list(extra.values()) if isinstance(extra, Mapping) else list(extra)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{file} is not readable JSON: {error}") from error
    if not isinstance(data, dict):
        raise UserError(f"{file} must hold a JSON object, not a {type(data).__name__}.")
    return data


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _steps(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The steps of a decoder or pre-tokenizer, a Sequence flattened."""
    if part is None:
        return []
    inner = part.get("decoders") or part.get("pretokenizers")
    return [step for child in inner for step in _steps(child)] if inner else [part]


def _is_byte_level(spec: Mapping[str, Any]) -> bool:
    steps = _steps(spec.get("decoder")) + _steps(spec.get("pre_tokenizer"))
    return any(step["type"] == "ByteLevel" for step in steps)


def _has_strip(decoder: Mapping[str, Any] | None) -> bool:
    return any(
        (step["type"] == "Strip" and step["start"] > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in _steps(decoder)
    )
