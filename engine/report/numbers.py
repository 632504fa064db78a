"""Numbers, times and choices as people read them: three significant digits. Knows no row."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

from engine.report.stats import Ratio

DIGITS = 3
NOTHING = "-"
MINUTE, HOUR = 60.0, 3600.0


def number(value: Any) -> str:
    """Three significant digits, thousands apart; an exponent for tiny ones. Counts are whole."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and abs(value) < 1_000_000:
        return f"{value:,}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(float(value), places)
    places = DIGITS - 1 - math.floor(math.log10(abs(rounded)))  # 9.996 has become 10.0
    if places > 6:
        return f"{rounded:.{DIGITS - 1}e}"
    return f"{rounded:,.{max(0, places)}f}"


def measure(value: Any, unit: str) -> str:
    """`1.30 ms`, `20.0%`, `8`."""
    return f"{number(value)}{'' if unit in ('', '%', 'x') else ' '}{unit}"


def times(ratio: Ratio | None) -> str:
    """`1.42x [1.38, 1.46]`; without an interval the ratio alone."""
    if ratio is None:
        return NOTHING
    return f"{number(ratio.value)}x" + interval(ratio)


def interval(ratio: Ratio) -> str:
    """` [low, high]`, or nothing where none is claimed."""
    return "" if ratio.low is None or ratio.high is None else f" {ends((ratio.low, ratio.high))}"


def ends(pair: tuple[float, float] | None) -> str:
    """`[low, high]`; nothing for None."""
    return "" if pair is None else f"[{number(pair[0])}, {number(pair[1])}]"


def duration(seconds: float | None) -> str:
    """`4.21 s`, `3 min 12 s`, `2 h 5 min`."""
    if seconds is None:
        return NOTHING
    if seconds < MINUTE:
        return f"{number(float(seconds))} s"
    whole = round(seconds)
    if whole < HOUR:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(text: str | None) -> str:
    """A time of ISO 8601 to the minute; as it is where it is none."""
    try:
        return datetime.fromisoformat(text or "").isoformat(sep=" ", timespec="minutes")
    except ValueError:
        return text or NOTHING


def choice(value: Any) -> str:
    """A setting's value as it is typed: null, true, 16, eagle3, [1,2]."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def word(value: Any) -> str:
    """A choice as a text that is equal for equal choices: true typed is true composed."""
    return choice(value).lower()
