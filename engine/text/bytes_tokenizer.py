"""A tokenizer whose tokens are the bytes themselves: no file, instant, for model=tiny and tests.

Knows nothing of any trained vocabulary; ids past 258 are padding of a larger model vocabulary.
"""

import re

from engine.errors import UserError
from engine.text.base import Tokenizer, TokenizerFacts

BOS, EOS, PAD = 256, 257, 258
_SPECIALS = {"<bos>": BOS, "<eos>": EOS, "<pad>": PAD}
_TEMPLATE = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


class ByteTokenizer(Tokenizer):
    """ids 0..255 are bytes, then BOS, EOS and PAD; any text round-trips."""

    def __init__(self, vocab_size: int = 259) -> None:
        if vocab_size <= PAD:
            raise UserError(
                f"vocab_size={vocab_size} is too small for the byte tokenizer: it needs 259 "
                "(256 bytes and three special tokens) or more."
            )
        facts = TokenizerFacts(
            eos_ids=(EOS,),
            bos_id=BOS,
            add_bos=True,
            chat_template=_TEMPLATE,
            named={"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"},
        )
        super().__init__(facts, vocab_size, _SPECIALS)

    def _encode(self, text: str, special: bool) -> list[int]:
        if not special:
            return list(text.encode("utf-8"))
        ids: list[int] = []
        for part in re.split("(<bos>|<eos>|<pad>)", text):
            ids += [_SPECIALS[part]] if part in _SPECIALS else part.encode("utf-8")
        return ids

    def raw_bytes(self, token: int) -> bytes:
        if token < BOS:
            return bytes((token,))
        return next((text.encode() for text, known in _SPECIALS.items() if known == token), b"")
