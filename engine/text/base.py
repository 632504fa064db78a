"""The tokenizer contract and what every tokenizer shares: decoding through bytes, chat, the one BOS.

Knows nothing of vocabulary formats; a subclass brings the encoding and the bytes of each token.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from engine.errors import InternalError, UserError
from engine.text.chat import ChatTemplate, Message, shield


@dataclass(frozen=True)
class TokenizerFacts:
    """What a tokenizer knows beside its vocabulary.

    bos_id: the id that opens a text, if the vocabulary has one; add_bos: whether the model was trained to see
    it in front of every text. named: the strings a chat template may ask for ("bos_token", "eos_token", ...).
    drops_leading_space: encoding puts a space in front of a text (SentencePiece), which decoding removes.
    """

    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    add_bos: bool = False
    chat_template: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    drops_leading_space: bool = False


class _Pieces(dict[int, bytes]):
    """id -> the bytes the token adds to a text; filled on demand, a hit costs one dictionary lookup."""

    def __init__(self, tokenizer: "Tokenizer", special: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special = special

    def __missing__(self, token: int) -> bytes:
        if token < 0:
            raise InternalError(f"token id {token} was given to the tokenizer for decoding; ids start at 0")
        is_special = token in self._tokenizer.special_ids
        piece = b"" if is_special and not self._special else self._tokenizer.raw_bytes(token)
        self[token] = piece
        return piece


class Tokenizer(ABC):
    """Text to ids and back. Bytes are the truth of decoding: a text is its tokens' bytes read as UTF-8.

    special_ids holds the control tokens (begin, end, roles...): they add nothing to a decoded text, and
    their spelling inside a text becomes a control token only where the caller says `special=True`.
    """

    def __init__(self, facts: TokenizerFacts, vocab_size: int, specials: Mapping[str, int]) -> None:
        self.facts = facts
        self.vocab_size = vocab_size
        self.eos_ids = facts.eos_ids
        self.bos_id = facts.bos_id
        self.add_bos = facts.add_bos
        self.chat_template = facts.chat_template
        self.specials = dict(specials)
        self.special_ids = frozenset(specials.values())
        self.pieces: Mapping[int, bytes] = _Pieces(self, special=False)
        self._pieces_with_special: Mapping[int, bytes] = _Pieces(self, special=True)

    @abstractmethod
    def _encode(self, text: str, special: bool) -> list[int]:
        """Ids of valid Unicode `text`, without any BOS; see `encode` for `special`."""

    @abstractmethod
    def raw_bytes(self, token: int) -> bytes:
        """The bytes of any token, a special one's spelling included; b"" for an id outside the vocabulary."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, never with an added BOS.

        special=False (user text): the spelling of a control token, say `<|im_end|>`, is plain text and cannot
        end a turn. special=True (templates): it is the control token.
        """
        try:
            return self._encode(text, special)
        except (UnicodeEncodeError, TypeError) as error:
            if not _has_surrogates(text):
                raise
            raise UserError(
                "The text to encode holds half of a surrogate pair, which is not valid Unicode: "
                "repair it or replace that character."
            ) from error

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a plain prompt, as the model expects a text to begin: with exactly one BOS if `add_bos`."""
        return self._with_bos(self.encode(text))

    def decode(self, ids: Iterable[int], *, special: bool = False, start: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD as bytes.decode(errors="replace") has it.

        special=True spells control tokens out. start=False: the ids continue a text, so a SentencePiece
        leading space is kept.
        """
        pieces = self._pieces_with_special if special else self.pieces
        data = b"".join([pieces[token] for token in ids])
        if start and self.facts.drops_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """What one token adds to a text: b"" for control tokens (unless special) and unknown ids."""
        return self._pieces_with_special[token] if special else self.pieces[token]

    def render_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The conversation as the model's chat template writes it. UserError without a template."""
        return self._template.render(messages, add_generation_prompt)

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Ids of the rendered conversation; exactly one BOS where the model wants one, template or not.

        Control tokens come from the template alone: their spelling inside a message is plain text,
        so that no user can forge a turn.
        """
        shielded, mark = shield(messages, self._special_pattern)
        rendered = self.render_chat(shielded, add_generation_prompt)
        ids = self._encode_shielded(rendered, mark) if mark else self.encode(rendered, special=True)
        return self._with_bos(ids)

    def _with_bos(self, ids: list[int]) -> list[int]:
        if not self.add_bos or self.bos_id is None or ids[:1] == [self.bos_id]:
            return ids
        return [self.bos_id, *ids]

    def _encode_shielded(self, rendered: str, mark: str) -> list[int]:
        ids: list[int] = []
        position = 0
        for match in self._special_pattern.finditer(rendered):
            ids += self.encode(rendered[position : match.start()].replace(mark, ""))
            ids.append(self.specials[match.group()])
            position = match.end()
        return ids + self.encode(rendered[position:].replace(mark, ""))

    @cached_property
    def _special_pattern(self) -> re.Pattern[str]:
        longest_first = sorted((text for text in self.specials if text), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self.chat_template, self.facts.named)


def _has_surrogates(text: str) -> bool:
    return any(0xD800 <= ord(char) <= 0xDFFF for char in text)
