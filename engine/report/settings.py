"""What rows chose: the keys in which they differ, what they share, labels, commands. Knows no figures."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.report.numbers import NOTHING, choice
from engine.report.rows import Row

# Settings that change what is computed, not how: rows that differ in them did other work.
WORK = ("model", "workload", "sampling", "task", "prompt", "seed")
SEED = "seed"
PROGRAM = ("python", "-m", "engine")
MUTE = ("none", "null", "default", "true", "false")
WORD = 28  # letters of a value in a row's name
MISSING = object()


def root(key: str) -> str:
    """The group that a key belongs to: `attention@spec.draft_attention` is spec's, `spec.topk` too."""
    return key.partition("@")[2].partition(".")[0] or key.partition(".")[0]


def is_work(key: str) -> bool:
    """Whether rows that differ in it did other work."""
    return root(key) in WORK


def belongs(key: str, group: str) -> bool:
    """Whether a key is a setting of the group's option, and goes with it."""
    return key != group and root(key) == group


def parsed(overrides: Iterable[str]) -> dict[str, str]:
    """key -> value of a command line; Hydra's own keys left out."""
    pairs = (override.partition("=") for override in overrides)
    found = {key.lstrip("+"): value.strip("'\"") for key, equal, value in pairs if equal}
    return {key: value for key, value in found.items() if root(key) != "hydra"}


def settings(row: Row) -> dict[str, Any]:
    """All that a row is known to have chosen. Its varied settings first, typed ones before the rest."""
    return {**row.varied, **{**parsed(row.overrides), **row.choices, **row.varied}}


def same(a: Any, b: Any) -> bool:
    """Whether two values are one choice, however they were typed."""
    return a is b or choice(a).lower() == choice(b).lower()


def differing(rows: Sequence[Row]) -> list[str]:
    """Keys in which the rows differ, the sweep's own in its order first. A setting that goes with the option
    of its group, and with nothing else, is left out."""
    each = [settings(row) for row in rows]
    names = dict.fromkeys(key for row in rows for key in row.varied)
    names |= dict.fromkeys(key for own in each for key in own)
    found = [key for key in names if len({_word(own.get(key, MISSING)) for own in each}) > 1]
    return [key for key in found if not any(_follows(key, group, each) for group in found)]


def _follows(key: str, group: str, each: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting of a group's option says nothing more than the option does."""
    if not belongs(key, group):
        return False
    pairs = {(_word(own.get(group, MISSING)), _word(own.get(key, MISSING))) for own in each}
    return len(pairs) == len({option for option, _ in pairs})


def shared(rows: Sequence[Row]) -> dict[str, str]:
    """What all rows chose alike."""
    if not rows:
        return {}
    first, *others = [settings(row) for row in rows]
    return {
        key: choice(value)
        for key, value in first.items()
        if all(key in own and same(own[key], value) for own in others)
    }


def shown(row: Row, key: str) -> str:
    """A row's choice for a key; a dash where the key does not exist for it."""
    value = settings(row).get(key, MISSING)
    return NOTHING if value is MISSING else choice(value)


def label(row: Row, keys: Sequence[str]) -> str:
    """`#3 triton, eagle3, num_steps 4`: the row's number and what it chose where rows differ."""
    return f"#{row.number} {', '.join(words(row, keys))}".rstrip()


def words(row: Row, keys: Sequence[str]) -> list[str]:
    """What the row chose for those of the keys that exist for it, a word or two each."""
    own = settings(row)
    return [_named(key, own[key]) for key in keys if key in own]


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


def _word(value: Any) -> str:
    return "\0" if value is MISSING else choice(value).lower()
