"""What users get of a request: Delta while it runs, Completion and RequestOutput at the end. Frozen data.

Knows nothing of how a request runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.batch import TokenLogprob


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one sample: what a step added, already trimmed. finish_reason is set in the last one only.

    Requests without a listener get a single Delta, at their end, that carries the whole completion.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


Event = Delta


@dataclass(frozen=True)
class Completion:
    """One finished sample. token_times: seconds from arrival until the host had each token.

    token_ids holds the stop id that ended it, `text` does not. error: what happened, if that ended it.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[TokenLogprob, ...] | None
    token_times: tuple[float, ...]
    error: str | None = None


@dataclass(frozen=True)
class RequestOutput:
    """All samples of one prompt. cached_tokens: prompt tokens the prefix cache held for the first of them.
    simulated: the accept length that was forced, whose text is nobody's; None for real output."""

    request_id: str
    prompt: str | None
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    cached_tokens: int
    simulated: float | None = None

    @property
    def text(self) -> str:
        """The first sample's text."""
        return self.completions[0].text

    @property
    def prompt_tokens(self) -> int:
        """Counted once, whatever n was."""
        return len(self.prompt_ids)

    @property
    def completion_tokens(self) -> int:
        return sum(len(c.token_ids) for c in self.completions)
