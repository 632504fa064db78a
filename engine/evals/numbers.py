"""Finds the number that an answer ends in, and writes numbers in one form. Knows no data set.

Importable without torch.
"""

from __future__ import annotations

import re

MARKER = "####"
# A sign, a currency, digits with commas between thousands, a decimal part. A dash between two words or digits
# is no sign, and a digit inside a word is no number.
_SIGN = r"(?:[-\u2212]?[$€£]\s?|[$€£]\s?[-\u2212]|[-\u2212])?"
_NUMBER = re.compile(
    rf"(?<![\w.]){_SIGN}(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)", re.ASCII
)
_DIGITS = re.compile(r"(-?)(?=\.?\d)(\d*)(?:\.(\d+))?", re.ASCII)
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


def strict_number(text: str) -> str | None:
    """The number behind the first `####`, in plain form; None where the answer does not end in that way.

    The first, as in the published evaluation (Cobbe et al. 2021): what a model says after it is not judged.
    """
    _, marker, rest = text.partition(MARKER)
    line = rest.strip().split("\n", 1)[0] if marker else ""
    found = _NUMBER.match(line.lstrip("*_ :="))
    return plain(found.group()) if found else None


def flexible_number(text: str) -> str | None:
    """The strict number; else the last one that is \\boxed; else the last one of the text."""
    strict = strict_number(text)
    if strict is not None:
        return strict
    for part in (*reversed(_BOXED.findall(text)), text):
        numbers = _NUMBER.findall(part)
        if numbers:
            return plain(numbers[-1])
    return None


def plain(number: str) -> str | None:
    """Digits alone: no currency, commas, spaces, trailing zeros or points. "$1,250.50" is "1250.5", "18.00"
    is "18". Exact for any length. None for what is no number."""
    digits = re.sub(r"[$€£,\s]", "", number.replace("\u2212", "-")).rstrip(".%")
    parts = _DIGITS.fullmatch(digits)
    if parts is None:
        return None
    minus, whole, fraction = parts[1], parts[2].lstrip("0") or "0", (parts[3] or "").rstrip("0")
    value = f"{whole}.{fraction}" if fraction else whole
    return f"-{value}" if minus and value != "0" else value
