"""How a GGUF's `tokenizer.ggml.pre` splits a text before byte-pair merging.

A file names its splitting and holds no pattern, so the patterns live here, each as the model's own
tokenizer.json has it, with case-insensitive contractions spelled out. Knows nothing of vocabularies.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from engine.errors import UserError
from engine.text.byte_symbols import BYTE_TO_SYMBOL

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"


def _modern(digits: str) -> str:
    """The pattern that Llama 3 and Qwen 2 share but for how many digits stay together."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True)
class PreTokenization:
    """patterns split one after the other, each inside the pieces of those before.

    ignore_merges: a piece that is a token as a whole is that token. add_bos: unless the file says else.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3 = PreTokenization((_modern(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenization((_modern(_DIGIT),))
_GPT2_ONLY = PreTokenization((_GPT2,))
_DIGITS_GPT2 = PreTokenization((_DIGIT, _GPT2))
_UNNAMED = PreTokenization((r"[\p{P}\$\+<=>\^\~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

_BY_NAME = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _GPT2_ONLY,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "default": _UNNAMED,
}


def pre_tokenization(name: str) -> PreTokenization:
    """The splitting that `tokenizer.ggml.pre` names; UserError for one that is not known here."""
    if name not in _BY_NAME:
        raise UserError(
            f"The GGUF's tokenizer.ggml.pre={name!r} is not supported, and guessing would give wrong ids: "
            f"known are {', '.join(sorted(_BY_NAME))}. Load the model from its safetensors folder instead, "
            "which brings tokenizer.json."
        )
    return _BY_NAME[name]


def build_pre_tokenizer(splitting: PreTokenization, vocabulary: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Splitting, then bytes as symbols, then the bytes without a token removed.

    Such a byte is lost, as in llama.cpp. It has to go before merging and leave a gap: `tokenizers` would let
    its neighbours merge across it.
    """
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    known = set(vocabulary)
    missing = "".join(rf"\x{{{ord(symbol):X}}}" for symbol in BYTE_TO_SYMBOL.values() if symbol not in known)
    if missing:
        steps.append(pre_tokenizers.Split(Regex(f"[{missing}]"), "removed"))
    return pre_tokenizers.Sequence(steps)
