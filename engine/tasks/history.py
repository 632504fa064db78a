"""A conversation that always fits the model's context. Knows no engine and prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Message = Mapping[str, str]
Encode = Callable[[Sequence[Message]], list[int]]
DEFAULT_ROOM = 256  # tokens kept free for an answer whose length is not limited


class History:
    """Messages of the past, oldest first; whole turns (question and answer) leave when space is short.

    max_context: tokens that prompt and answer may have together. max_tokens: longest answer, None: any.
    """

    def __init__(self, encode: Encode, max_context: int, max_tokens: int | None, system: str | None) -> None:
        self._encode = encode
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[list[Message]] = []
        room = min(max_tokens or DEFAULT_ROOM, max_context // 2)
        self._limit = max_context - max(room, 1)

    def reset(self) -> None:
        """Forget everything but the system text."""
        self._turns.clear()

    def ask(self, text: str) -> tuple[list[int] | None, int]:
        """(prompt ids of the conversation with the new question, turns dropped to make them fit).

        None for a question that does not fit even alone: nothing is changed then.
        """
        question: Message = {"role": "user", "content": text}
        turns = [*self._turns, [question]]
        for dropped in range(len(turns)):
            kept = turns[dropped:]
            ids = self._encode([*self._system, *(message for turn in kept for message in turn)])
            if len(ids) <= self._limit:
                self._turns = kept
                return ids, dropped
        return None, 0

    def answered(self, text: str) -> None:
        """The model's answer to the last question."""
        self._turns[-1].append({"role": "assistant", "content": text})
