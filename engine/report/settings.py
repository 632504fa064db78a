"""What rows chose: the keys in which they differ, what they share, labels, commands. Knows no figures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from engine.report.keys import SEED, belongs, parsed
from engine.report.numbers import NOTHING, choice
from engine.report.rows import Row

PROGRAM = ("python", "-m", "engine")
MUTE = ("none", "null", "default", "true", "false")
WORD = 28  # letters of a value in a row's name


def differing(rows: Sequence[Row]) -> list[str]:
    """Keys in which the rows differ, the sweep's own in its order first. A setting that goes with the option
    of its group, and with nothing else, is left out."""
    each = [row.words for row in rows]
    names = dict.fromkeys(key for row in rows for key in row.varied)
    names |= dict.fromkeys(key for own in each for key in own)
    found = [key for key in names if len({own.get(key) for own in each}) > 1]
    return [key for key in found if not any(_follows(key, group, each) for group in found)]


def _follows(key: str, group: str, each: Sequence[Mapping[str, str]]) -> bool:
    """Whether a setting of a group's option says nothing more than the option does."""
    if not belongs(key, group):
        return False
    pairs = {(own.get(group), own.get(key)) for own in each}
    return len(pairs) == len({option for option, _ in pairs})


def shared(rows: Sequence[Row]) -> dict[str, str]:
    """What all rows chose alike."""
    if not rows:
        return {}
    first, *others = rows
    return {
        key: choice(value)
        for key, value in first.settings.items()
        if all(other.words.get(key) == first.words[key] for other in others)
    }


def shown(row: Row, key: str) -> str:
    """A row's choice for a key; a dash where the key does not exist for it."""
    return choice(row.settings[key]) if key in row.settings else NOTHING


def label(row: Row, keys: Sequence[str]) -> str:
    """`#3 triton, eagle3, num_steps 4`: the row's number and what it chose where rows differ."""
    return f"#{row.number} {', '.join(words(row, keys))}".rstrip()


def words(row: Row, keys: Sequence[str]) -> list[str]:
    """What the row chose for those of the keys that exist for it, a word or two each."""
    return [_named(key, row.settings[key]) for key in keys if key in row.settings]


def command(row: Row) -> str:
    """The shell command that runs the row again; with the seed that it drew, if it drew one."""
    seed = row.facts.get("seed")
    drawn = [f"seed={seed}"] if isinstance(seed, int) and SEED not in parsed(row.overrides) else []
    return shlex.join([*PROGRAM, *row.overrides, *drawn])


def replay_command(row: Row) -> str | None:
    """The command that repeats the row's snapshot and compares the ids; None where it left no folder."""
    return None if row.path is None else shlex.join(["python", "-m", "engine.replay", str(row.path)])


def cut(text: str, width: int) -> str:
    """The text, with an ellipsis where it is longer than `width` letters."""
    return text if len(text) <= width else text[: width - 1].rstrip(" ,") + "…"


def described(values: Mapping[str, Any]) -> str:
    """`spec=none attention=torch`."""
    return " ".join(f"{key}={choice(value)}" for key, value in values.items())


def _named(key: str, value: Any) -> str:
    """An option speaks for itself; a number needs its key's name, and so does an option that says no more."""
    text = cut(choice(value), WORD)
    speaks = text not in MUTE and "." not in key and "@" not in key
    return text if speaks else f"{key.rpartition('.')[2]} {text}"
