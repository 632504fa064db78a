"""What comes after an answer in a conversation: the next turn, asked with everything said before it.

Importable without torch. Knows no loop; whoever drives the requests asks it for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TextIO

from engine.tasks.drive import Answer, Job
from engine.tasks.requests import Message, first_messages, fits
from engine.workloads.base import WorkItem

if TYPE_CHECKING:
    from engine.tasks.base import TextEngine


@dataclass
class Dialogues:
    """The conversations of one run over the items; a second run needs another."""

    engine: TextEngine
    items: Sequence[WorkItem]
    stderr: TextIO
    _histories: dict[int, tuple[Message, ...]] = field(default_factory=dict)

    def total(self, jobs: Sequence[Job]) -> int:
        """Requests that the jobs can become: every turn is one."""
        return sum(max(1, len(self.items[job.key].turns)) for job in jobs)

    def follow(self, answer: Answer) -> Job | None:
        """The next turn's job, its history ending with the answer's first sample. None: nothing is left to
        ask, the answer was cut, or the conversation is full, which is said."""
        job = answer.job
        item, turn = self.items[job.key], job.turn + 1
        if turn >= len(item.turns) or answer.cut:
            return None
        said = {"role": "assistant", "content": answer.output.text}
        history = self._histories.get(job.key, first_messages(item))
        messages = (*history, said, {"role": "user", "content": item.turns[turn]})
        self._histories[job.key] = messages
        ids = tuple(self.engine.tokenizer.encode_chat(messages))
        following = replace(job, ids=ids, turn=turn)
        if fits(following, self.engine):
            return following
        print(f"conversation {job.key + 1} is full before turn {turn + 1}: it ends here", file=self.stderr)
        return None
