"""Free text on a command line, brought through Hydra's grammar and OmegaConf's interpolation unchanged.

Knows the two grammars' escapes and nothing of what a value means.
"""

from __future__ import annotations

import re

_INTERPOLATION = re.compile(r"(\\*)\$\{")
_BACKSLASHES_BEFORE_QUOTE = re.compile(r"(\\*)'")
_TRAILING_BACKSLASHES = re.compile(r"(\\+)\Z")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED = {"true", "false", "null", "nan", "inf"}
_QUOTED = {quote: re.compile(rf"{quote}(?:\\.|[^\\{quote}])*{quote}", re.DOTALL) for quote in "'\""}


def quote(text: str, *, sweep: bool = False) -> str:
    """`text` as an override value that Hydra reads back verbatim.

    Text that is one quoted string already is Hydra's own, except that nothing inside is interpolated; with
    `sweep` a comma-separated list of quoted strings is too.
    """
    if is_quoted(text, sweep=sweep):
        return _protect_quoted(text)
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    escaped = _protect(text)
    escaped = _BACKSLASHES_BEFORE_QUOTE.sub(lambda m: m[1] * 2 + r"\'", escaped)
    return "'" + _TRAILING_BACKSLASHES.sub(lambda m: m[1] * 2, escaped) + "'"


def is_quoted(text: str, *, sweep: bool = False) -> bool:
    """Whether the whole text is one string in a matching pair of quotes (with sweep: a list of such)."""
    one = "|".join(pattern.pattern for pattern in _QUOTED.values())
    pattern = rf"(?:{one})(?:\s*,\s*(?:{one}))*" if sweep else rf"(?:{one})"
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def _protect(text: str) -> str:
    """OmegaConf reads `${` as an interpolation unless a backslash precedes it, and halves those there."""
    return _INTERPOLATION.sub(lambda m: m[1] * 2 + r"\${", text)


def _protect_quoted(text: str) -> str:
    """The same for text that may be protected already: an odd number of backslashes is."""
    return _INTERPOLATION.sub(lambda m: m[0] if len(m[1]) % 2 else m[1] + r"\${", text)
