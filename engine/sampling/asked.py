"""What requests ask of sampling, as plain values: one request's, and the union over those of a batch.

A leaf of the import graph like engine.batch; knows neither tensors nor requests.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_LIMIT = 1 << 30  # larger than any length


@dataclass(frozen=True)
class SamplingClass:
    """What the accept stage of a batch must compute: the union over its requests."""

    sampled: bool = False  # some request has temperature > 0
    filters: bool = False  # some request uses top_k, top_p or min_p
    shaped: bool = False  # some request uses penalties, logit bias or min_tokens
    top_logprobs: int = -1  # -1 none; 0 the token's own; k the k best too

    @property
    def certain(self) -> bool:
        """Whether every token is the likeliest one of the model's own distribution."""
        return not (self.sampled or self.shaped)

    def __or__(self, other: SamplingClass) -> SamplingClass:
        return SamplingClass(
            self.sampled or other.sampled,
            self.filters or other.filters,
            self.shaped or other.shaped,
            max(self.top_logprobs, other.top_logprobs),
        )


@dataclass(frozen=True)
class SamplingRow:
    """Per-request sampling values as the device columns hold them. Lengths are positions, prompt included."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    key: int = 0  # 64-bit RNG key made of (seed, sample index)
    min_len: int = 0  # stop ids are masked while the drawn token's position < min_len
    max_len: int = NO_LIMIT  # the request ends once it has this many known tokens
    max_drafts: int = NO_LIMIT  # deepest draft that counts as present; 0: plain decoding within any batch
    stop_ids: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()

    @property
    def shaped(self) -> bool:
        """Whether the row needs the counts of known tokens (repetition, frequency or presence penalty)."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
