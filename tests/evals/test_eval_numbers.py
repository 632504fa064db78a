"""Numbers out of answers: what is strict, what is flexible, and when two spellings are one number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.evals.numbers import flexible_number, plain, strict_number


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("3 + 4 = 7\n#### 7", "7", "7"),
        ("#### 1,250", "1250", "1250"),
        ("#### $1,250.50", "1250.5", "1250.5"),
        ("#### $ 18", "18", "18"),
        ("#### 18 dollars", "18", "18"),
        ("#### 18.", "18", "18"),
        ("#### 18.00", "18", "18"),
        ("#### -3", "-3", "-3"),
        ("#### \u22123", "-3", "-3"),
        ("#### $-3", "-3", "-3"),
        ("#### **42**", "42", "42"),
        ("####42", "42", "42"),
        ("#### 75%", "75", "75"),
        ("#### 0", "0", "0"),
        ("#### 1000000", "1000000", "1000000"),
        ("#### .5", "0.5", "0.5"),
        ("#### 7\n#### 8", "7", "7"),  # the first, as in the published evaluation
        ("#### 7\nQuestion: 9?", "7", "7"),
        ("#### seven, so 7", None, "7"),
        ("The answer is 12.", None, "12"),
        ("The answer is 12,000 metres.", None, "12000"),
        ("so x=12", None, "12"),
        ("10-3", None, "3"),  # a dash between two numbers is no sign
        ("10 - 3 = 7", None, "7"),
        ("it is (-7)", None, "-7"),
        ("costs $5, then $6 each", None, "6"),
        (r"hence \boxed{1{,}000} or \boxed{24} since 3 > 2", None, "24"),
        (r"\boxed{x}, 5", None, "5"),
        ("in 1,2345 parts", None, "2345"),
        ("20km", None, "20"),
        ("step x2", None, None),
        ("total --5", None, "-5"),
        ("-$5", None, "-5"),
        ("$-5", None, "-5"),
        ("nothing", None, None),
        ("", None, None),
        ("####", None, None),
        ("12 ####", None, "12"),
    ],
)
def test_extraction(text: str, strict: str | None, flexible: str | None) -> None:
    assert strict_number(text) == strict
    assert flexible_number(text) == flexible


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("1,000", "1000.0"),
        ("$5", "5."),
        ("-0", "0"),
        ("007", "7"),
        (f"{10**40:,}", f"{10**40}.0"),
        ("50%", "50"),
    ],
)
def test_spellings_of_one_number(a: str, b: str) -> None:
    assert plain(a) == plain(b) != None  # noqa: E711 - a chain


@pytest.mark.parametrize("text", ["", "x", "$", "1.2.3", "1e2", "٣", "-", "nan", "inf", "--1"])
def test_no_numbers(text: str) -> None:
    assert plain(text) is None


@given(st.integers(-(10**12), 10**12))
def test_any_whole_number_is_found_with_and_without_commas(value: int) -> None:
    assert strict_number(f"so\n#### {value:,}") == str(value)
    assert flexible_number(f"the result is {value:,} units.") == str(value)


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    found = flexible_number(text)
    assert found is None or plain(found) == found
