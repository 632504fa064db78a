"""A sweep's cells and how they ended, as text for a terminal. Reads no file and runs nothing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.sweeps.cells import Cell
from engine.sweeps.states import FAILURES, FINISHED, OK, REJECTED, JobState

States = Mapping[str, JobState]


def listing(cells: Sequence[Cell], states: States, todo: Sequence[Cell], trials: int) -> str:
    """Every known cell with its verdict; of a sweep that was started, what became of it. trials: cells that
    are yet to be chosen."""
    waiting = {cell.id for cell in todo}
    words = [_word(cell, states.get(cell.id), waiting) for cell in cells]
    width = max((len(word) for word in words), default=0)
    lines = [counted(Counter(words), len(cells))] if cells else []
    lines += [f"{trials} cells are chosen while the sweep runs (sweep.trials)"] if trials else []
    for number, (cell, word) in enumerate(zip(cells, words, strict=True), 1):
        lines.append(f"{number:>4}  {cell.id}  {word:<{width}}  {cell.title}")
        lines += [f"{'':22}{line}" for line in _notes(cell, states.get(cell.id))]
    return "\n".join(lines)


def closing(cells: Sequence[Cell], states: States, folder: Path, page: Path | None) -> str:
    """What a finished or interrupted sweep leaves on the terminal; its last line is the folder."""
    words = Counter(_word(cell, states.get(cell.id), set()) for cell in cells)
    lines, resume = [counted(words, len(cells))], shlex.quote(f"resume={folder}")
    if any(state.state in FAILURES for state in states.values()):
        lines.append(f"again: python -m engine {resume} retry=failed")
    if any(cell.verdict == OK and _open(states.get(cell.id)) for cell in cells):
        lines.append(f"go on: python -m engine {resume}")
    return "\n".join([*lines, *([str(page)] if page else []), str(folder)])


def counted(words: Counter[str], total: int) -> str:
    """ "9 cells: 6 finished, 2 rejected, 1 killed"."""
    parts = ", ".join(f"{count} {word}" for word, count in words.most_common())
    return f"{total} cell{'s' if total > 1 else ''}: {parts}"


def _word(cell: Cell, state: JobState | None, waiting: set[str]) -> str:
    if cell.verdict == REJECTED:
        return REJECTED
    if cell.id in waiting:
        return "to do"
    return "not run" if state is None else state.state.replace("_", " ")


def _notes(cell: Cell, state: JobState | None) -> list[str]:
    reason = cell.reason if state is None else state.reason
    same = [f"the same config as {' '.join(overrides)}: runs once" for overrides in cell.duplicates]
    return [*(reason or "").splitlines(), *same]


def _open(state: JobState | None) -> bool:
    return state is None or state.state not in (FINISHED, *FAILURES)
