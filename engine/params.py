"""What a request may ask of its sampling: the public parameters, their limits, and what the device needs of
them.

Free of torch. Knows neither the scheduler nor how a token is drawn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from engine.build import number
from engine.errors import UserError
from engine.sampling.asked import NO_LIMIT, SamplingClass, SamplingRow
from engine.sampling.limits import MAX_BIASES, MAX_LOGPROBS, MAX_STOP_IDS, MAX_USER_STOP_IDS

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MAX_SEED = (1 << 63) - 1
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16


@dataclass(frozen=True)
class SamplingConfig:
    """The fields of SamplingParams with their limits; also the schema of the config group `sampling`."""

    temperature: float = number(0.0, ge=0.0, le=100.0)  # 0: greedy
    top_k: int = number(0, ge=0)  # 0: off
    top_p: float = number(1.0, gt=0.0, le=1.0)
    min_p: float = number(0.0, ge=0.0, le=1.0)
    repetition_penalty: float = number(1.0, gt=0.0, le=10.0)  # over prompt and output
    frequency_penalty: float = number(0.0, ge=-2.0, le=2.0)  # over the output
    presence_penalty: float = number(0.0, ge=-2.0, le=2.0)  # over the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id -> added to its logit
    min_tokens: int = number(0, ge=0)
    max_tokens: int | None = number(256, ge=1)  # null: until the context is full
    stop: tuple[str, ...] | str = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False  # keep the stop string in the text
    seed: int | None = number(None, ge=0, le=MAX_SEED)  # null: a fresh one, which the run records
    n: int = number(1, ge=1, le=MAX_SAMPLES)  # samples a prompt
    logprobs: int | None = number(None, ge=0, le=MAX_LOGPROBS)  # null: none; 0: the token's own
    prompt_logprobs: int | None = None  # not supported; anything but null is refused
    speculative: bool = True  # false: this request takes no drafts, whatever spec does for the others


@dataclass(frozen=True)
class SamplingParams(SamplingConfig):
    """Sampling parameters of one request. Raises UserError naming every field that is out of its range.

    Filters apply in the order temperature, top-k, top-p, min-p, after bias, penalties and min_tokens
    (see engine.sampling.sampler). logprobs are those of the model's unfiltered distribution.
    """

    Config = SamplingConfig
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        found = problems(self)
        if found:
            raise UserError("\n".join(found))
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))

    @classmethod
    def from_config(cls, config: SamplingConfig) -> SamplingParams:
        """The parameters that a config node asks for."""
        return cls(**{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})

    def check_vocab(self, vocab_size: int) -> None:
        """Raise UserError when a token id of logit_bias or stop_token_ids lies outside the vocabulary."""
        named = {"logit_bias": self.logit_bias, "stop_token_ids": self.stop_token_ids}
        for name, ids in named.items():
            for token in ids:
                if token >= vocab_size:
                    raise UserError(
                        f"sampling.{name} names token {token}, "
                        f"but the model's vocabulary ends at {vocab_size - 1}"
                    )

    def sampling_class(self) -> SamplingClass:
        """What the accept stage must compute for this request. Filters never change a greedy choice."""
        sampled = self.temperature > 0
        return SamplingClass(
            sampled=sampled,
            filters=sampled and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0),
            shaped=self.penalised or bool(self.logit_bias) or self.min_tokens > 0,
            top_logprobs=-1 if self.logprobs is None else self.logprobs,
        )

    @property
    def penalised(self) -> bool:
        """Whether the request needs counts of its tokens (penalty columns in the request table)."""
        return bool(self.repetition_penalty != 1 or self.frequency_penalty or self.presence_penalty)

    def row(
        self, prompt_len: int, eos_ids: Iterable[int], sample_index: int, seed: int, max_context: int
    ) -> SamplingRow:
        """The device values of sample `sample_index` of a request with `prompt_len` prompt tokens.

        seed: self.seed, or the fresh one that the caller drew and recorded. max_context: positions a row
        holds.
        """
        limit = max_context if self.max_tokens is None else prompt_len + self.max_tokens
        ends = self.stop_token_ids if self.ignore_eos else (*self.stop_token_ids, *eos_ids)
        stop_ids = tuple(dict.fromkeys(ends))
        if len(stop_ids) > MAX_STOP_IDS:
            raise UserError(f"sampling.stop_token_ids and the model's own end ids exceed {MAX_STOP_IDS} ids")
        return SamplingRow(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            key=sample_key(seed, sample_index),
            min_len=prompt_len + self.min_tokens,
            max_len=min(limit, max_context),
            stop_ids=stop_ids,
            bias=tuple(self.logit_bias.items()),
            max_drafts=NO_LIMIT if self.speculative else 0,
        )


def sample_key(seed: int, sample_index: int) -> int:
    """64-bit RNG key of one sample: SplitMix64's finaliser (Steele, Lea, Flood 2014, sec. 5) over both
    numbers."""
    return mix64(mix64(seed + _GOLDEN) + (sample_index + 1) * _GOLDEN)


def mix64(value: int) -> int:
    """Bijective mixing of 64 bits: variant 13 of Stafford, as in SplitMix64."""
    z = value & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def problems(params: SamplingConfig) -> list[str]:
    """Every mistake in the values, one sentence each; empty when they are fine."""
    found = [p for f in dataclasses.fields(SamplingConfig) for p in _field_problems(params, f)]
    if found:
        return found
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        found.append(
            f"sampling.min_tokens={params.min_tokens} has to be at most max_tokens={params.max_tokens}"
        )
    return found


def _field_problems(params: SamplingConfig, spec: dataclasses.Field[Any]) -> list[str]:
    value = getattr(params, spec.name)
    checks = {
        "logit_bias": _bias_problems,
        "stop": _stop_problems,
        "stop_token_ids": _stop_id_problems,
        "prompt_logprobs": _prompt_logprobs_problems,
    }
    if spec.name in checks:
        return checks[spec.name](value)
    kind = str(spec.type)
    if value is None and "None" in kind:
        return []
    if kind == "bool":
        return [] if isinstance(value, bool) else [f"sampling.{spec.name}={value!r} has to be true or false"]
    return _number_problems(f"sampling.{spec.name}", value, spec.metadata, whole=kind.startswith("int"))


def _number_problems(name: str, value: object, limits: Mapping[str, float], *, whole: bool) -> list[str]:
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if is_number and _within(cast(float, value), limits):
        return []
    return [f"{name}={value!r} has to be {'an integer' if whole else 'a number'} {_range(limits)}"]


def _within(value: float, limits: Mapping[str, float]) -> bool:
    return (
        (isinstance(value, int) or math.isfinite(value))
        and value >= limits.get("ge", -math.inf)
        and value > limits.get("gt", -math.inf)
        and value <= limits.get("le", math.inf)
    )


def _range(limits: Mapping[str, float]) -> str:
    words = {"ge": "from", "gt": "above", "le": "up to"}
    return " ".join(f"{word} {limits[key]}" for key, word in words.items() if key in limits)


def _bias_problems(value: object) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"sampling.logit_bias={value!r} has to map token ids to numbers"]
    if len(value) > MAX_BIASES:
        return [f"sampling.logit_bias has {len(value)} entries; at most {MAX_BIASES} are supported"]
    found = []
    for token, bias in value.items():
        found += _number_problems("sampling.logit_bias: token id", token, {"ge": 0}, whole=True)
        found += _number_problems(f"sampling.logit_bias[{token}]", bias, {"ge": -100, "le": 100}, whole=False)
    return found


def _stop_problems(value: object) -> list[str]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or not all(isinstance(s, str) for s in value):
        return [f"sampling.stop={value!r} has to be a text or a list of texts"]
    if len(value) > MAX_STOP_STRINGS:
        return [f"sampling.stop has {len(value)} texts; at most {MAX_STOP_STRINGS} are supported"]
    return ["sampling.stop holds an empty text, which would end every output at once"] if "" in value else []


def _stop_id_problems(value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [f"sampling.stop_token_ids={value!r} has to be a list of token ids"]
    if len(value) > MAX_USER_STOP_IDS:
        return [f"sampling.stop_token_ids has {len(value)} ids; at most {MAX_USER_STOP_IDS} are supported"]
    return [
        p for t in value for p in _number_problems("sampling.stop_token_ids: id", t, {"ge": 0}, whole=True)
    ]


def _prompt_logprobs_problems(value: object) -> list[str]:
    if value is None:
        return []
    return [
        f"sampling.prompt_logprobs={value!r} is not supported: log-probabilities are computed "
        "for output tokens only; leave it null and use sampling.logprobs"
    ]
