"""Conversations in the form of ShareGPT, their answers made by the engine or taken from the file.

Knows the file's rows. Importable without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.build import choice, number
from engine.errors import UserError
from engine.workloads.base import WorkItem
from engine.workloads.data import DataSet, DataWorkload
from engine.workloads.rows import as_object

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
}


@dataclass(frozen=True)
class Dialogue:
    """A row. asked: user turns; answers: the file's answer to each that has one, so at most as many."""

    asked: tuple[str, ...]
    answers: tuple[str, ...]
    system: str | None = None


def parse_dialogue(row: Any, where: str) -> Dialogue | None:
    """The row's turns. What an assistant says first is dropped, several messages of one side in a row become
    one. None: there is no user turn in it (the published files hold such rows)."""
    messages = as_object(row, where).get("conversations", row.get("conversation"))
    if not isinstance(messages, list):
        raise UserError(f"{where}: needs the key conversations, a list of {{from, value}} objects")
    system: str | None = None
    turns: list[tuple[str, str]] = []
    for message in messages:
        role, text = _message(message, where)
        if role == "system":
            system = text if system is None else f"{system}\n\n{text}"
        elif not text.strip() or (role == "assistant" and not turns):
            continue
        elif turns and turns[-1][0] == role:
            turns[-1] = (role, f"{turns[-1][1]}\n\n{text}")
        else:
            turns.append((role, text))
    asked, answers = (tuple(t for r, t in turns if r == role) for role in ("user", "assistant"))
    return Dialogue(asked, answers, system) if asked else None


def _message(message: Any, where: str) -> tuple[str, str]:
    keys = message if isinstance(message, dict) else {}
    who, text = keys.get("from", keys.get("role")), keys.get("value", keys.get("content"))
    if not isinstance(who, str) or not isinstance(text, str):
        raise UserError(f"{where}: every message needs a from and a value, both text")
    if who.lower() not in ROLES:
        raise UserError(f"{where}: from={who} is not one of {', '.join(ROLES)}")
    return ROLES[who.lower()], text


SHAREGPT = DataSet(
    name="sharegpt",
    form='{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}',
    origin="a JSON array or JSONL, the form in which ShareGPT's conversations are passed around",
    sample=Path(__file__).with_name("sharegpt_sample.jsonl"),
    hub=(),
    parse=parse_dialogue,
    what="conversations with a user turn",
)


class ShareGptWorkload(DataWorkload[Dialogue]):
    """answers=engine: a conversation is asked turn by turn, each turn sent when the one before it was
    answered, with the engine's own answers as history. answers=file: every turn is a request of its own, with
    the file's answers as history: the load is then the same for every configuration, known in advance."""

    data = SHAREGPT

    @dataclass(frozen=True)
    class Config(DataWorkload.Config):
        """limit: the first so many conversations (answers=engine) or requests (answers=file). max_turns: of a
        conversation."""

        answers: str = choice("engine", ("engine", "file"))
        max_turns: int | None = number(None, ge=1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._asked = {"engine": by_engine, "file": by_file}[config.answers]
        self._max_turns = config.max_turns

    def asked(self, row: Dialogue) -> list[WorkItem]:
        return self._asked(row, row.asked[: self._max_turns])


def by_engine(row: Dialogue, asked: Sequence[str]) -> list[WorkItem]:
    """One conversation."""
    if len(asked) == 1:
        return [WorkItem(prompt=asked[0], system=row.system)]
    return [WorkItem(turns=tuple(asked), system=row.system)]


def by_file(row: Dialogue, asked: Sequence[str]) -> list[WorkItem]:
    """One request a turn; a turn's history is all that the file says before it."""
    history = [] if row.system is None else [{"role": "system", "content": row.system}]
    items = []
    for place, text in enumerate(asked):
        history.append({"role": "user", "content": text})
        items.append(WorkItem(messages=tuple(history)))
        history += [{"role": "assistant", "content": said} for said in row.answers[place : place + 1]]
    return items
