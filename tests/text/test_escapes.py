"""Backslash escapes from the command line."""

import pytest

from engine.text.escapes import unescape


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (r"\n", "\n"),
        (r"a\nb\tc\rd", "a\nb\tc\rd"),
        (r"\\n", r"\n"),
        (r"\\\n", "\\\n"),
        (r"\\", "\\"),
        (r"\x41\x0a", "A\n"),
        (r"\u00e9\U0001F600", "é😀"),
        (r"\q \1 \' C:\dir", r"\q \1 \' C:\dir"),
        (r"\x4 \u12 \xzz", r"\x4 \u12 \xzz"),
        (r"\ud800 \U00110000", r"\ud800 \U00110000"),
        ("end\\", "end\\"),
        ("", ""),
        ("real\nnewline", "real\nnewline"),
    ],
)
def test_unescape(typed: str, meant: str) -> None:
    assert unescape(typed) == meant
