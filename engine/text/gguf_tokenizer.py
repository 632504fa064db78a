"""A tokenizer out of the metadata of a GGUF file.

Follows llama.cpp's reading of that metadata, whose ids are the reference. Knows nothing of tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Inner
from tokenizers.models import BPE

from engine.errors import UserError
from engine.text.base import Tokenizer, TokenizerFacts
from engine.text.pre_tokenizers import PreTokenization, build_pre_tokenizer, pre_tokenization
from engine.text.tokenizer import FastTokenizer

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # tokenizer.ggml.token_type
_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Files made before eot_token_id existed name only the end of a document; these end a turn.
_TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>")


def tokenizer_from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes; UserError if it is of a kind not supported here.

    metadata: the file's `tokenizer.*` keys with their values as numbers, texts and lists.
    """
    kind = metadata.get(_PREFIX + "model")
    tokens: Sequence[str] = _required(metadata, "tokens")
    types: Sequence[int] = metadata.get(_PREFIX + "token_type") or [_NORMAL] * len(tokens)
    _check_length("token_type", types, tokens)
    if kind == "gpt2":
        splitting = pre_tokenization(_required(metadata, "pre"))
        inner = _byte_level_bpe(tokens, _required(metadata, "merges"), splitting)
        facts = _facts(metadata, tokens, types, add_bos=splitting.add_bos, space_prefix=False)
    elif kind == "llama":
        space_prefix = bool(metadata.get(_PREFIX + "add_space_prefix", True))
        scores: Sequence[float] = _required(metadata, "scores")
        _check_length("scores", scores, tokens)
        inner = _sentencepiece_bpe(tokens, types, scores, space_prefix)
        facts = _facts(metadata, tokens, types, add_bos=True, space_prefix=space_prefix)
    else:
        raise UserError(
            f"The GGUF's tokenizer.ggml.model={kind!r} is not supported: known are 'gpt2' (byte-level BPE), "
            "'llama' (SentencePiece BPE). Load the model from its safetensors folder instead."
        )
    _add_special(inner, tokens, types)
    return FastTokenizer(inner, facts, byte_level=kind == "gpt2")


def _required(metadata: Mapping[str, Any], name: str) -> Any:
    value = metadata.get(_PREFIX + name)
    if not value:
        raise UserError(
            f"The GGUF has no {_PREFIX}{name}, so its tokenizer cannot be built: get a complete file."
        )
    return value


def _check_length(name: str, values: Sequence[object], tokens: Sequence[str]) -> None:
    if len(values) != len(tokens):
        raise UserError(
            f"The GGUF's {_PREFIX}{name} has {len(values)} entries for {len(tokens)} tokens: "
            "get a complete file."
        )


def _byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], splitting: PreTokenization) -> Inner:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [_pair(merge) for merge in merges]
    inner = Inner(_bpe(vocabulary, pairs, ignore_merges=splitting.ignore_merges))
    inner.pre_tokenizer = build_pre_tokenizer(splitting, vocabulary)
    return inner


def _sentencepiece_bpe(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], space_prefix: bool
) -> Inner:
    """BPE merges out of piece scores.

    SentencePiece merges the neighbours whose piece has the best score (Kudo and Richardson 2018, section
    3.1), so every way to put a piece together is a merge, ranked by the piece's score.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    mergeable = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _UNUSED)}
    ranked = sorted(mergeable, key=lambda token: (-scores[vocabulary[token]], vocabulary[token]))
    pairs = [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in mergeable and piece[cut:] in mergeable
    ]
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    inner = Inner(_bpe(vocabulary, pairs, byte_fallback=True, unk_token=unknown))
    prefix = [normalizers.Prepend("▁")] if space_prefix else []
    inner.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    return inner


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _bpe(vocabulary: Mapping[str, int], pairs: Sequence[tuple[str, str]], **options: Any) -> BPE:
    try:
        return BPE(vocab=dict(vocabulary), merges=pairs, **options)
    except Exception as error:  # the library raises bare Exception for anything wrong with its arguments
        raise UserError(f"The GGUF's tokenizer contradicts itself: {error}. Get a complete file.") from error


def _add_special(inner: Inner, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens count where a caller asks for them, user-defined ones always."""
    special = [token for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _UNKNOWN)]
    always = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    inner.add_tokens([AddedToken(token, normalized=False, special=False) for token in always])


def _facts(
    metadata: Mapping[str, Any],
    tokens: Sequence[str],
    types: Sequence[int],
    add_bos: bool,
    space_prefix: bool,
) -> TokenizerFacts:
    named = {name: metadata.get(_PREFIX + key) for name, key in _NAMES.items()}
    eos = [metadata.get(_PREFIX + key) for key in ("eos_token_id", "eot_token_id", "eom_token_id")]
    eos += [i for i, token in enumerate(tokens) if types[i] == _CONTROL and token in _TURN_ENDS]
    return TokenizerFacts(
        eos_ids=tuple(dict.fromkeys(int(token) for token in eos if token is not None)),
        bos_id=metadata.get(_PREFIX + "bos_token_id"),
        add_bos=bool(metadata.get(_PREFIX + "add_bos_token", add_bos)),
        chat_template=metadata.get("tokenizer.chat_template"),
        named={name: tokens[index] for name, index in named.items() if index is not None},
        drops_leading_space=space_prefix,
    )
