"""Tokenizers from a model folder against transformers' fast tokenizers on the same files."""

import json
from pathlib import Path
from typing import Any

import chat_templates as samples
import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from engine.errors import UserError
from engine.text import tokenizer as ours

CORPUS = [
    "The quick brown fox, 123 times.  It's\n\n",
    "def f(x): return x  # 你好 café 👋🏽 привет",
    "ab abab aab",
]
SPECIALS = [
    "<s>",
    "</s>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
]


def byte_level() -> Tokenizer:
    inner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, special_tokens=SPECIALS)
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken("<think>", normalized=False), AddedToken("żółw", normalized=False)])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return inner


def sentencepiece() -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(["<unk>", *SPECIALS])}
    for token in [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh", "▁a", "ab", "▁ab"]:
        vocabulary[token] = len(vocabulary)
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "ab")]
    inner = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in ["<unk>", *SPECIALS]]
    )
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return inner


KINDS = {"byte_level": byte_level, "sentencepiece": sentencepiece}


def write(folder: Path, inner: Tokenizer, **config: Any) -> Path:
    inner.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "clean_up_tokenization_spaces": False, **config}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path, KINDS[request.param](), chat_template=samples.LLAMA3)


def test_ids_and_texts_equal_transformers(folder: Path, nasty_texts: list[str]) -> None:
    mine, theirs = ours.load_tokenizer_folder(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    texts = [*nasty_texts, *CORPUS, "a<think>b żółw c", "<s>a</s>b <|eot_id|> ab"]
    for text in texts:
        ids = theirs.encode(text, add_special_tokens=False)
        assert mine.encode(text, special=True) == ids, text
        assert mine.encode(text) == theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        if "▁" not in text:  # SentencePiece's own spelling of a space
            assert mine.decode(mine.encode(text)) == text
        if "żółw" not in text:  # transformers decodes an added token's letters as byte symbols
            assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    assert mine.vocab_size == len(theirs)


def test_facts_and_the_one_bos(folder: Path) -> None:
    mine, theirs = ours.load_tokenizer_folder(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    assert (mine.bos_id, mine.eos_ids, mine.add_bos) == (theirs.bos_token_id, (theirs.eos_token_id,), True)
    assert mine.encode_prompt("ab ab") == theirs.encode("ab ab")
    for messages in samples.CONVERSATIONS.values():
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert mine.encode_chat(messages) == expected
        assert expected.count(mine.bos_id) == 1


@pytest.mark.parametrize("part", [ord("a"), 0xC4, 0x8F])
def test_token_bytes(folder: Path, part: int) -> None:
    mine = ours.load_tokenizer_folder(folder)
    ids = mine.encode("a ďábelské 日本")
    assert b"".join(map(mine.token_bytes, ids)).decode().strip() == "a ďábelské 日本"
    assert any(part in mine.token_bytes(token) for token in ids)
    assert mine.token_bytes(mine.vocab_size + 7) == b""


@pytest.mark.parametrize(
    ("stated", "expected"), [(None, True), (True, True), (False, False)], ids=["silent", "yes", "no"]
)
def test_add_bos(tmp_path: Path, stated: bool | None, expected: bool) -> None:
    config = {} if stated is None else {"add_bos_token": stated}
    mine = ours.load_tokenizer_folder(write(tmp_path, byte_level(), **config))
    assert mine.add_bos is expected
    assert (mine.encode_prompt("x")[0] == mine.bos_id) is expected


def test_generation_config_adds_ends(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [4, 6, 1]}')
    assert ours.load_tokenizer_folder(tmp_path).eos_ids == (1, 4, 6)


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    inner = byte_level()
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    mine = ours.load_tokenizer_folder(write(tmp_path, inner))
    assert mine.decode(mine.encode("one two three four five six")) == "one two three four five six"
    assert len(mine.encode("a")) == 1


def test_tokens_that_only_the_config_adds(tmp_path: Path) -> None:
    size = byte_level().get_vocab_size()
    entry = {"content": "<new>", "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    mine = ours.load_tokenizer_folder(write(tmp_path, byte_level(), added_tokens_decoder={str(size): entry}))
    assert mine.encode("<new>") == [size]
    assert mine.decode([size]) == "<new>"


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
def test_specials_that_only_the_config_names(tmp_path: Path, key: str) -> None:
    pad = {"__type": "AddedToken", "content": "<pad>", "special": True}
    write(tmp_path, byte_level(), pad_token=pad, **{key: ["<|tool|>"]})
    mine, theirs = ours.load_tokenizer_folder(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "a<pad>b<|tool|>c"
    ids = theirs.encode(text, add_special_tokens=False)
    assert sorted(mine.encode(text, special=True)) == sorted(ids)
    assert mine.decode(mine.encode(text, special=True)) == "abc"
    assert {"<pad>", "<|tool|>"} <= set(mine.specials)


@pytest.mark.parametrize(
    "template", ["hello", [{"name": "rag", "template": "no"}, {"name": "default", "template": "hello"}]]
)
def test_where_the_template_lies(tmp_path: Path, template: Any) -> None:
    write(tmp_path, byte_level(), chat_template=template)
    assert ours.load_tokenizer_folder(tmp_path).render_chat(samples.ONE) == "hello"
    (tmp_path / "chat_template.jinja").write_text("from the file {{ eos_token }}")
    assert ours.load_tokenizer_folder(tmp_path).render_chat(samples.ONE) == "from the file </s>"


def test_without_a_config_there_is_no_chat(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").unlink()
    mine = ours.load_tokenizer_folder(tmp_path)
    assert (mine.bos_id, mine.eos_ids, mine.chat_template) == (None, (), None)
    with pytest.raises(UserError, match="no chat template"):
        mine.encode_chat(samples.ONE)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "not a tokenizer that can be read"),
        ("tokenizer.json", '{"version": "1.0"', "not a tokenizer that can be read"),
        ("tokenizer_config.json", "{", "not readable JSON"),
        ("tokenizer_config.json", "[1]", "must hold a JSON object"),
        ("generation_config.json", "\x00", "not readable JSON"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    write(tmp_path, byte_level())
    file = tmp_path / name
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        ours.load_tokenizer_folder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
