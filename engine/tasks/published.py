"""What a model card tells of a command line: everything but where this machine keeps its files.

Knows paths in text; nothing of cards, options or models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_WORDS = re.compile(r"""(?P<quote>['"])(?P<quoted>.*?)(?P=quote)|[^\s,\[\](){}'"]+""")


def published(override: str, folders: Sequence[Path]) -> str:
    """`key=value` with every absolute path in the value, or one below the home folder, as a relative one.

    folders: absolute; what lies in one of them is named from there, anything else by its last part.
    """
    key, sign, value = override.partition("=")
    if not sign:
        return _relative(key, folders)

    def word(found: re.Match[str]) -> str:
        mark, quoted = found["quote"] or "", found["quoted"]
        return f"{mark}{_relative(found[0] if quoted is None else quoted, folders)}{mark}"

    return f"{key}={_WORDS.sub(word, value)}"


def _relative(word: str, folders: Sequence[Path]) -> str:
    if not word.startswith(("/", "~")):
        return word
    path = Path(word)
    if word.startswith("~"):
        path = Path.home().joinpath(*path.parts[1:]) if path.parts[0] == "~" else path
    real = (folder for folder in folders if folder.name)  # below the root lies everything
    inside = next((folder for folder in real if path.is_relative_to(folder)), None)
    return path.name or "." if inside is None else str(path.relative_to(inside))
