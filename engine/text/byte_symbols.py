"""GPT-2's byte alphabet: each of the 256 bytes as one printable character, and back.

Source: Radford et al. 2019, section 2.2 (byte-level BPE); the mapping is the one of the published vocabulary.
"""


def _alphabet() -> dict[int, str]:
    """Printable Latin-1 bytes stand for themselves; the other 68 take U+0100 and up, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


BYTE_TO_SYMBOL = _alphabet()
SYMBOL_TO_BYTE = {symbol: byte for byte, symbol in BYTE_TO_SYMBOL.items()}


def symbols_to_bytes(token: str) -> bytes:
    """The bytes a token's spelling stands for; one with a character outside the alphabet is plain text."""
    try:
        return bytes([SYMBOL_TO_BYTE[char] for char in token])
    except KeyError:
        return token.encode("utf-8")
