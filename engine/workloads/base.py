"""What a workload is: a list of things to ask a model, and when. Knows no tokenizer and no model.

Importable without torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.build import number


@dataclass(frozen=True)
class WorkItem:
    """One request, or one conversation. Exactly one of prompt, messages, turns and ids is filled.

    prompt: one user text. messages: a conversation that ends with the user. turns: user texts asked one after
    the other, each with the model's earlier answers as history. ids: a prompt given as token ids.
    system: opens the conversation of `prompt` or `turns`. at: seconds after the start at which the request
    arrives (a conversation's first turn). max_tokens: of this request alone; None: the sampling group's.
    """

    prompt: str | None = None
    messages: tuple[Mapping[str, str], ...] = ()
    turns: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    system: str | None = None
    at: float = 0.0
    max_tokens: int | None = None

    def as_row(self) -> dict[str, Any]:
        """The item as a line of JSONL that `parse_row` reads back."""
        extras = {
            **({} if self.system is None else {"system": self.system}),
            **({"at": self.at} if self.at else {}),
            **({} if self.max_tokens is None else {"max_tokens": self.max_tokens}),
        }
        return {**self._asked(), **extras}

    def _asked(self) -> dict[str, Any]:
        if self.prompt is not None:
            return {"prompt": self.prompt}
        if self.messages:
            return {"messages": [dict(message) for message in self.messages]}
        return {"turns": list(self.turns)} if self.turns else {"ids": list(self.ids)}

    def title(self) -> str:
        """What a person recognises the item by."""
        if self.messages:
            return str(self.messages[-1]["content"])
        if self.prompt is not None:
            return self.prompt
        return self.turns[0] if self.turns else f"{len(self.ids)} token ids"


class Workload(ABC):
    """A list of items. A wrong source is reported at construction, before a model is read."""

    representative: bool = True  # False: speed-ups measured on it say nothing about real text

    @dataclass(frozen=True)
    class Config:
        """limit: use the first so many items only."""

        limit: int | None = number(None, ge=1)

    @abstractmethod
    def __init__(self, config: Any) -> None: ...

    def fetch(self) -> None:
        """Bring what is not on this machine; called once, before a model is read."""
        return None

    @abstractmethod
    def items(self, vocab_size: int) -> list[WorkItem]:
        """At least one item. vocab_size: of the model, for workloads made of token ids."""
