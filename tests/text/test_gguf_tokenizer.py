"""Tokenizers from GGUF metadata, on small vocabularies: splitting, merging, special tokens, errors."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from engine.errors import UserError
from engine.text.base import Tokenizer as Ours
from engine.text.byte_symbols import BYTE_TO_SYMBOL, symbols_to_bytes
from engine.text.gguf_tokenizer import tokenizer_from_metadata
from engine.text.pre_tokenizers import build_pre_tokenizer, pre_tokenization

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and it's 12 345 times as quick as the others.",
    "def f(x):\n    return  1 + x\n\n    return  22\n",
    "café naïve über 你好 世界 привет мир 👋🏽 don't we'll they're   three   spaces\r\n",
]


def byte_level(pre: str, tokens: list[str], merges: list[str], **more: Any) -> dict[str, Any]:
    values = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@cache
def trained() -> Tokenizer:
    """An independent tokenizer of the smollm kind: digits apart, then GPT-2's own byte-level splitting."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    return inner


def exported(inner: Tokenizer, pre: str) -> dict[str, Any]:
    model = json.loads(inner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return byte_level(pre, tokens, [" ".join(pair) for pair in model["merges"]])


@cache
def smollm_like() -> Ours:
    return tokenizer_from_metadata(exported(trained(), "smollm"))


def test_smollm_splitting_equals_digits_then_byte_level(nasty_texts: list[str]) -> None:
    for text in [*nasty_texts, *CORPUS]:
        assert smollm_like().encode(text) == trained().encode(text).ids, text
        assert smollm_like().decode(smollm_like().encode(text)) == text


CHARACTERS = st.one_of(
    st.sampled_from("  \t\n\r'stremvd019٣½abZéß你本\u0301\u200d👋🏽\u00a0\u2003\u2028.,;(<|_-"),
    st.characters(codec="utf-8"),
)


@settings(max_examples=300, deadline=None)
@given(text=st.text(CHARACTERS, max_size=40))
def test_smollm_splitting_equals_digits_then_byte_level_on_any_text(text: str) -> None:
    assert smollm_like().encode(text) == trained().encode(text).ids


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "return  12", ["return", "  ", "1", "2"]),
        ("gpt-2", "return  12", ["return", " ", " 12"]),
        ("qwen2", "x 123a", ["x", " ", "1", "2", "3", "a"]),
        ("llama-bpe", "x 1234567", ["x", " ", "123", "456", "7"]),
        ("llama-bpe", "can'T we'LL", ["can", "'T", " we", "'LL"]),
        ("gpt-2", "can'T", ["can", "'", "T"]),
        ("qwen2", "a\n\n  b", ["a", "\n\n", " ", " b"]),
        ("llama-bpe", "x;\r\n y", ["x", ";\r\n", " y"]),
        ("gpt-2", "x;\n y", ["x", ";", "\n", " y"]),
        ("qwen2", "(foo)_bar", ["(foo", ")_", "bar"]),
        ("default", "a==12345", ["a", "==", "123", "45"]),
        ("starcoder", "v10", ["v", "1", "0"]),
        ("refact", "v10", ["v", "1", "0"]),
        ("llama3", "v1234", ["v", "123", "4"]),
        ("llama-v3", "v1234", ["v", "123", "4"]),
        ("deepseek-r1-qwen", "v12", ["v", "1", "2"]),
    ],
)
def test_splitting(pre: str, text: str, pieces: list[str]) -> None:
    splitter = build_pre_tokenizer(pre_tokenization(pre), BYTE_TO_SYMBOL.values())
    found = [symbols_to_bytes(piece).decode() for piece, _ in splitter.pre_tokenize_str(text)]
    assert found == pieces


def test_bytes_without_a_token_are_lost_and_keep_neighbours_apart() -> None:
    tokens = [symbol for byte, symbol in BYTE_TO_SYMBOL.items() if byte not in (0x04, 0xF1)] + ["ab"]
    ours = tokenizer_from_metadata(byte_level("smollm", tokens, ["a b"]))
    a, b, ab = (tokens.index(token) for token in ("a", "b", "ab"))
    assert ours.encode("ab") == [ab]
    assert ours.encode("a\x04b") == [a, b]
    assert ours.decode(ours.encode("x\x04\x04y")) == "xy"
    assert ours.decode(ours.encode("\U00040000")) == b"\x80\x80\x80".decode(errors="replace")


def test_ignore_merges_takes_a_whole_word() -> None:
    tokens = [*BYTE_TO_SYMBOL.values(), "abc", "xy"]
    whole = tokenizer_from_metadata(byte_level("llama-bpe", tokens, ["x y"]))
    merged = tokenizer_from_metadata(byte_level("qwen2", tokens, ["x y"]))
    assert whole.encode("abc") == [256]
    assert merged.encode("abc") == [tokens.index(char) for char in "abc"]
    assert whole.encode("xy") == merged.encode("xy") == [257]


PIECES = ["▁", "a", "b", "c", "▁a", "ab", "bc", "▁ab", "abc", "aa", "aaa", "▁▁", "▁▁▁", "bb", "ba"]


def sentencepiece(order: list[str], **more: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *order]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(order)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(order))]
    values = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, **more}
    values |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def merged_by_hand(text: str, order: list[str]) -> list[str]:
    """The obvious rule: of all neighbours that form a piece merge the best, the leftmost of equals."""
    parts = list(text)
    while True:
        found = [
            (order.index(left + right), index)
            for index, (left, right) in enumerate(pairwise(parts))
            if left + right in order
        ]
        if not found:
            return parts
        _, index = min(found)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="abc ", min_size=1, max_size=24), order=st.permutations(PIECES))
def test_sentencepiece_merges_the_best_score_first(text: str, order: list[str]) -> None:
    metadata = sentencepiece(order)
    ours = tokenizer_from_metadata(metadata)
    expected = merged_by_hand("▁" + text.replace(" ", "▁"), order)
    assert [metadata["tokenizer.ggml.tokens"][token] for token in ours.encode(text)] == expected
    assert ours.decode(ours.encode(text)) == text


def test_sentencepiece_falls_back_to_bytes_and_minds_the_first_space() -> None:
    ours = tokenizer_from_metadata(sentencepiece(PIECES))
    ids = ours.encode("é")
    assert ids == [PIECES.index("▁") + 259, 0xC3 + 3, 0xA9 + 3]
    assert ours.decode(ids) == "é"
    assert ours.decode(ids, start=False) == " é"
    assert ours.encode_prompt("a")[:1] == [1]
    unprefixed = tokenizer_from_metadata(sentencepiece(PIECES, add_space_prefix=False))
    assert unprefixed.encode("a") == [PIECES.index("a") + 259]
    assert unprefixed.decode(unprefixed.encode(" a")) == " a"


def with_specials(**more: Any) -> dict[str, Any]:
    alphabet = list(BYTE_TO_SYMBOL.values())
    tokens = [*alphabet, "ab", "<|eot_id|>", "<keep>", "<|bos|>"]
    types = [NORMAL] * 257 + [CONTROL, USER_DEFINED, CONTROL]
    return byte_level("gpt-2", tokens, ["a b"], token_type=types, bos_token_id=259, **more)


def test_token_types_decide_what_is_special() -> None:
    ours = tokenizer_from_metadata(with_specials(eos_token_id=0))
    assert ours.special_ids == {257, 259}
    assert ours.encode("<|eot_id|>", special=True) == [257]
    assert ours.encode("<|eot_id|>") == [ours.encode(char)[0] for char in "<|eot_id|>"]
    assert ours.encode("ab<keep>ab") == ours.encode("ab<keep>ab", special=True) == [256, 258, 256]
    assert ours.decode([256, 257, 258, 259]) == "ab<keep>"


def test_threads_do_not_mix_plain_and_special() -> None:
    ours = tokenizer_from_metadata(with_specials())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda turn: ours.encode("<|eot_id|>", special=turn % 2 == 0), range(400)))
    assert [len(ids) == 1 for ids in found] == [turn % 2 == 0 for turn in range(400)]


@pytest.mark.parametrize(
    ("more", "eos"),
    [
        ({"eos_token_id": 0}, (0, 257)),
        ({"eos_token_id": 257}, (257,)),
        ({"eos_token_id": 5, "eot_token_id": 6, "eom_token_id": 7}, (5, 6, 7, 257)),
        ({}, (257,)),
    ],
)
def test_what_ends_an_answer(more: dict[str, int], eos: tuple[int, ...]) -> None:
    assert tokenizer_from_metadata(with_specials(**more)).eos_ids == eos


@pytest.mark.parametrize(
    ("pre", "stated", "expected"),
    [("llama-bpe", None, True), ("llama-bpe", False, False), ("gpt-2", None, False), ("gpt-2", True, True)],
)
def test_add_bos_is_the_files_word_or_the_kinds(pre: str, stated: bool | None, expected: bool) -> None:
    metadata = with_specials() | {"tokenizer.ggml.pre": pre}
    if stated is not None:
        metadata["tokenizer.ggml.add_bos_token"] = stated
    ours = tokenizer_from_metadata(metadata)
    assert ours.add_bos is expected
    assert (ours.encode_prompt("ab") == [259, 256]) is expected


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"pre": "martian"}, ["tokenizer.ggml.pre='martian'", "smollm"]),
        ({"pre": None}, ["tokenizer.ggml.pre"]),
        ({"model": "bert"}, ["tokenizer.ggml.model='bert'"]),
        ({"model": None}, ["tokenizer.ggml.model=None"]),
        ({"tokens": []}, ["tokenizer.ggml.tokens"]),
        ({"merges": None}, ["tokenizer.ggml.merges"]),
        ({"merges": ["q zz"]}, ["contradicts itself"]),
        ({"token_type": [1, 1]}, ["token_type", "2 entries for 260 tokens"]),
        ({"model": "llama"}, ["tokenizer.ggml.scores"]),
    ],
)
def test_what_cannot_be_built_is_named(change: dict[str, Any], names: list[str]) -> None:
    metadata = with_specials() | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(UserError) as caught:
        tokenizer_from_metadata(metadata)
    assert all(name in str(caught.value) for name in names)
    assert "\n" not in str(caught.value)
