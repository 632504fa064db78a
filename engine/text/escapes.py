"""Backslash escapes in texts that come from a command line, where a newline cannot be typed.

Knows nothing of which setting the text is for.
"""

import re

_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:([ntr\\])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8}))")


def unescape(text: str) -> str:
    r"""`text` with `\n`, `\t`, `\r`, `\\`, `\xNN`, `\uNNNN` and `\UNNNNNNNN` (code points) replaced.

    Any other backslash stays as it is, and so does a code that is no character (a surrogate, past U+10FFFF).
    """
    return _ESCAPE.sub(_replace, text)


def _replace(match: re.Match[str]) -> str:
    if match[1]:
        return _PLAIN[match[1]]
    code = int(match[2] or match[3] or match[4], 16)
    return match[0] if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF else chr(code)
