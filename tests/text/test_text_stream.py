"""Incremental detokenisation: equal to decoding the whole, whatever the grouping, the bytes and the stops."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UserError
from engine.text.base import Tokenizer
from engine.text.bytes_tokenizer import EOS, ByteTokenizer
from engine.text.gguf_tokenizer import tokenizer_from_metadata
from engine.text.stream import TextStream

TOKENIZER = ByteTokenizer(512)
TRICKY = "ďábelské 👋🏽 日本 a\u0301\ufffd \U0010ffff"
# Bytes that begin, continue and break characters, more often than chance would have it.
BYTES = st.one_of(
    st.integers(0, 255),
    st.sampled_from([0x41, 0x80, 0xBF, 0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, EOS, 300]),
)
IDS = st.lists(BYTES, max_size=30)


def grouped(ids: list[int], sizes: list[int]) -> list[list[int]]:
    groups, start, turn = [], 0, 0
    while start < len(ids):
        groups.append(ids[start : start + sizes[turn % len(sizes)]])
        start, turn = start + len(groups[-1]), turn + 1
    return groups


def run(stream: TextStream, groups: list[list[int]]) -> tuple[str, int | None]:
    """The whole text and the number of ids kept, None if no stop came."""
    text, kept = "", 0
    for group in groups:
        fed = stream.feed(group)
        text += fed.text
        if fed.cut is not None:
            return text + stream.finish(), kept + fed.cut
        kept += len(group)
    return text + stream.finish(), None


@settings(max_examples=400, deadline=None)
@given(ids=IDS, sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4), stop=st.booleans())
def test_deltas_equal_the_full_decode(ids: list[int], sizes: list[int], stop: bool) -> None:
    stream = TextStream(TOKENIZER, [65], ["\x00\x01never\x02"] if stop else [])
    text, cut = run(stream, grouped(ids, sizes))
    assert text == TOKENIZER.decode(ids)
    assert cut is None


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 100])
def test_no_replacement_mid_character(size: int) -> None:
    text = TRICKY.replace("\ufffd", "")
    stream = TextStream(TOKENIZER)
    deltas = [stream.feed(group).text for group in grouped(TOKENIZER.encode(text), [size])]
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(deltas) == text
    assert stream.finish() == ""


def test_an_unfinished_character_shows_only_at_the_end() -> None:
    stream = TextStream(TOKENIZER)
    assert stream.feed(list("aé".encode())[:2]).text == "a"
    assert stream.feed([]).text == ""
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""


@pytest.mark.parametrize("known", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_prompt_ending_inside_a_character_never_leaks(known: int, size: int) -> None:
    pepper = list("🌶".encode())
    prompt = [*TOKENIZER.encode_prompt("Hello world "), *pepper[:known]]
    completes, _ = run(TextStream(TOKENIZER, prompt), grouped([*pepper[known:], *b" ok"], [size]))
    assert completes == "🌶 ok"
    breaks, _ = run(TextStream(TOKENIZER, prompt), grouped(list("é no".encode()), [size]))
    assert breaks == "é no"


@settings(max_examples=300, deadline=None)
@given(prompt=IDS, ids=IDS, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_after_any_prompt_the_text_is_the_answers_alone(
    prompt: list[int], ids: list[int], sizes: list[int]
) -> None:
    text, _ = run(TextStream(TOKENIZER, prompt), grouped(ids, sizes))
    alone = TOKENIZER.decode(ids)
    whole = TOKENIZER.decode([*prompt, *ids])
    joined = (
        bool(ids) and text != alone and whole.endswith(text)
    )  # the answer completed the prompt's character
    assert text == alone or (joined and len(text) <= len(alone) + 1 and "\ufffd" in alone)


def test_a_prompt_tail_is_cut_by_a_control_token() -> None:
    stream = TextStream(TOKENIZER, [*"🌶".encode()[:2], EOS])
    assert stream.feed([0xE2, 0x82, 0xAC]).text == "€"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 50])
@pytest.mark.parametrize(
    ("text", "stops", "include", "expected", "kept"),
    [
        ("The quick brown fox jumps", ["own fox"], False, "The quick br", 19),
        ("The quick brown fox jumps", ["own fox"], True, "The quick brown fox", 19),
        ("The quick brown fix", ["own fox"], False, "The quick brown fix", None),
        ("ends with own fo", ["own fox"], False, "ends with own fo", None),
        ("abcd", ["abcd", "bc"], False, "a", 3),
        ("xabc", ["bc", "abc"], False, "x", 4),
        ("xabc", ["c", "abc"], True, "xabc", 4),
        ("aaab", ["aab"], False, "a", 4),
        ("ababac", ["abac"], False, "ab", 6),
        ("no\nmore", ["\n"], False, "no", 3),
        ("stop at once", ["s"], False, "", 1),
        ("日本語", ["本"], False, "日", 6),
        ("a😀b", ["😀"], False, "a", 5),
        ("same end", [" end", "d"], False, "same", 8),
    ],
)
def test_stop_strings(
    text: str, stops: list[str], include: bool, expected: str, kept: int | None, size: int
) -> None:
    stream = TextStream(TOKENIZER, [], stops, include)
    assert run(stream, grouped(TOKENIZER.encode(text), [size])) == (expected, kept)


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("abé", max_size=20),
    stops=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_stops_equal_a_search_of_every_prefix(
    text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    expected: tuple[str, int | None] = (text, None)
    for end in range(len(text) + 1):
        hits = [stop for stop in stops if text[:end].endswith(stop)]
        if hits:
            start = end - max(map(len, hits))
            expected = (text[: end if include else start], len(text[:end].encode()))
            break
    stream = TextStream(TOKENIZER, [], stops, include)
    assert run(stream, grouped(list(text.encode()), sizes)) == expected


def test_only_what_may_become_a_stop_is_withheld() -> None:
    stream = TextStream(TOKENIZER, [], ["own fox", "!!"])
    deltas = [stream.feed([byte]).text for byte in b"brown ow!x"]
    assert deltas == ["b", "r", "", "", "", "", "own ", "", "ow", "!x"]


def test_after_the_stop_nothing_counts() -> None:
    stream = TextStream(TOKENIZER, [], ["b"])
    assert stream.feed(TOKENIZER.encode("abc")) == ("a", 2)
    assert stream.feed(TOKENIZER.encode("abc")) == ("", 0)
    assert stream.finish() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="empty stop string"):
        TextStream(TOKENIZER, [], ["x", ""])


@pytest.fixture(scope="module")
def spaced() -> Tokenizer:
    """A SentencePiece vocabulary of single characters, which puts a space before a text."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a", "▁▁"]
    values = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 1],
        "scores": [0.0] * 259 + [-9.0, -9.0, -1.0, -2.0],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return tokenizer_from_metadata({f"tokenizer.ggml.{key}": value for key, value in values.items()})


@pytest.mark.parametrize("text", ["a a", " a", "  é a", "👋 a"])
@pytest.mark.parametrize("size", [1, 2, 99])
def test_the_leading_space_of_sentencepiece(spaced: Tokenizer, text: str, size: int) -> None:
    ids = spaced.encode(text)
    alone, _ = run(TextStream(spaced), grouped(ids, [size]))
    assert alone == text == spaced.decode(ids)
    after_prompt, _ = run(TextStream(spaced, [1, *spaced.encode("a")]), grouped(ids, [size]))
    assert after_prompt == " " + text == spaced.decode(ids, start=False)


@pytest.mark.model
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_embedded_vocabulary_streams_every_nasty_text(
    smollm2: Tokenizer, nasty_texts: list[str], size: int
) -> None:
    for text in nasty_texts:
        ids = smollm2.encode(text, special=True)
        streamed, _ = run(TextStream(smollm2, [1, 2]), grouped(ids, [size]))
        assert streamed == smollm2.decode(ids)
