"""Incremental detokenisation: token ids in, text out as soon as it is certain, stop strings found on the way.

Knows nothing of scheduling; it never sees the prompt's text, only the bytes of a character left open there.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import UserError
from engine.text.base import Tokenizer


class Fed(NamedTuple):
    """What one feed brought. text: new certain text. cut: None, or how many of the fed ids belong to the
    answer because a stop string completed in the last of them."""

    text: str
    cut: int | None = None


class TextStream:
    """The text of one answer. prompt_ids: the last three suffice.

    The concatenated texts of `feed` and `finish` equal `tokenizer.decode(ids)` of all ids fed, however they
    were grouped, up to the stop. Bytes that turn out not to be UTF-8 read as bytes.decode(errors="replace")
    reads the whole. Two cases where the prompt matters: if it ends inside a character that the answer
    completes, the character is the answer's; and after any prompt a SentencePiece leading space is kept.

    Stop strings: the one that completes first wins (of several completing at one character the longest), the
    text ends before it (after it with include_stop) and later feeds bring nothing. The id in which it
    completed is the last that counts; what its bytes hold past the stop is no part of the text.
    """

    __slots__ = ("_held", "_include_stop", "_open", "_pieces", "_start", "_stopped", "_stops", "_tail")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stop_strings: Sequence[str] = (),
        include_stop: bool = False,
    ) -> None:
        if "" in stop_strings:
            raise UserError(
                "An empty stop string would end every answer at once: remove it from the stop strings."
            )
        self._pieces = tokenizer.pieces
        self._stops = tuple(stop_strings)
        self._include_stop = include_stop
        self._tail = _open_tail(tokenizer, prompt_ids)  # bytes of a character that the prompt leaves open
        self._start = tokenizer.facts.drops_leading_space and not prompt_ids
        self._open = b""  # fed bytes of a character that is not complete
        self._held = ""  # text that may become a stop string
        self._stopped = False

    def feed(self, ids: Sequence[int]) -> Fed:
        """Take the next ids; O(their bytes)."""
        if self._stopped:
            return Fed("", 0)
        if not self._stops:
            pieces = self._pieces
            return Fed(self._read(b"".join([pieces[token] for token in ids])))
        out = ""
        for index, token in enumerate(ids):
            out += self._scan(self._read(self._pieces[token]))
            if self._stopped:
                return Fed(out, index + 1)
        return Fed(out)

    def finish(self) -> str:
        """The rest: withheld text, and U+FFFD for a character that never became whole. Idempotent."""
        if self._stopped:
            return ""
        text = self._open.decode("utf-8", errors="replace")
        self._open = self._tail = b""
        rest = self._scan(text) + self._held
        self._held = ""
        self._stopped = True
        return rest

    def _read(self, data: bytes) -> str:
        """The characters that `data` completes; the bytes of an open one stay."""
        if self._open:
            data = self._open + data
        if self._start and data:
            self._start = False
            data = data.removeprefix(b" ")
        if self._tail and data:
            return self._read_after_tail(data)
        text, used = utf_8_decode(data, "replace", False)
        self._open = data[used:] if used < len(data) else b""
        return text

    def _read_after_tail(self, data: bytes) -> str:
        """Decide whether `data`, all that was fed, completes the prompt's last character."""
        missing = _character_length(self._tail[0]) - len(self._tail)
        first = self._tail + data[:missing]
        text, used = utf_8_decode(first, "replace", False)
        if not used:  # still open
            self._open = data
            return ""
        broken = len(text) > 1 or (text == "\ufffd" and first != b"\xef\xbf\xbd")
        tail, self._tail, self._open = self._tail, b"", b""
        return self._read(data if broken else tail + data)

    def _scan(self, text: str) -> str:
        """Pass on what can no longer belong to a stop string; at a stop, cut and end."""
        if not self._stops or not text:
            return text
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stops if stop in text]
        if found:
            end, negative_length = min(found)
            self._stopped = True
            self._held = ""
            return text[: end if self._include_stop else end + negative_length]
        keep = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[keep:]
        return text[:keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    position = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while position >= 0:
        if stop.startswith(text[position:]):
            return len(text) - position
        position = text.find(stop[0], position + 1)
    return 0


def _character_length(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _open_tail(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> bytes:
    """Up to three bytes at the prompt's end that begin a character without completing it."""
    tail = b""
    for token in reversed(prompt_ids):
        piece = tokenizer.pieces[token]
        tail = piece + tail
        if not piece or len(tail) >= 3 or tail[-1] < 0x80:
            break
    tail = tail[-3:]
    return tail[utf_8_decode(tail, "replace", False)[1] :]
