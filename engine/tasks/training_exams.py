"""The target's answers to the prompts of task.evaluate: asked once, kept, taken over from an earlier run.

Importable without torch. Knows files and who has to answer; not how a draft is measured on them.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.tasks.base import TextEngine
from engine.tasks.drive import Answer
from engine.tasks.training_files import Sequences, load_text, save_text
from engine.tasks.training_stops import EXAMS
from engine.tasks.training_text import sequences

Ids = Sequence[int]
Ask = Callable[[Sequence[Ids]], Sequence[Answer]]
WHO = "exams.json"  # beside the arrays, in the same archive


def target_facts(engine: TextEngine, model: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """What decides a greedy answer. model: the config's node; tokens: of the longest answer."""
    files = dict(engine.model_files)
    facts = {"model": dict(model), "files": files, "dtype": engine.dtype, "tokens": tokens}
    plain: dict[str, Any] = json.loads(json.dumps(facts))
    return plain


class ExamAnswers:
    """Whole answers by prompt. who: facts about the target that gave them."""

    def __init__(self, who: Mapping[str, Any], vocab: int, files: Sequence[str] = ()) -> None:
        """files: of earlier runs. UserError for one of another target, or of another kind."""
        self._who = dict(who)
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}
        for name in files:
            self._take_over(name, vocab)

    def of(self, prompts: Sequence[Ids], ask: Ask) -> Sequences:
        """(prompt and answer, prompt length) of each prompt that fits, in order; only those not known yet are
        asked. An answer that was cut by a stop is returned, but not known."""
        new = [ids for ids in prompts if tuple(ids) not in self._known]
        answers = ask(new) if new else ()
        cut: dict[tuple[int, ...], tuple[int, ...]] = {}
        for answer, (ids, length) in zip(answers, sequences(answers), strict=True):
            (cut if answer.cut else self._known)[ids[:length]] = ids
        found = ((self._known.get(tuple(ids)) or cut.get(tuple(ids)), len(ids)) for ids in prompts)
        return [(ids, length) for ids, length in found if ids is not None]

    def save(self, path: Path) -> None:
        """All that is known, for a later run; no file where nothing is."""
        if not self._known:
            return
        save_text(path, [(ids, len(prompt)) for prompt, ids in self._known.items()])
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(WHO, json.dumps(self._who))

    def _take_over(self, name: str, vocab: int) -> None:
        path = Path(name).expanduser()
        try:
            with zipfile.ZipFile(path) as archive:
                theirs = dict(json.loads(archive.read(WHO)))
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"task.answers={name} is no exams.npz of task=train_eagle3: {error}") from error
        differs = [key for key in self._who if theirs.get(key) != self._who[key]]
        if differs:
            raise UserError(
                f"task.answers={name} holds answers that were made with other settings "
                f"({', '.join(differs)}): leave it out, and the prompts of task.evaluate are asked again"
            )
        kept = load_text(name, vocab, "task.answers", EXAMS)
        self._known |= {ids[:prompt]: ids for ids, prompt in kept}
