"""Measures drafting against plain decoding: paired times, accept lengths, cost by width. Publishes nothing.

Every engine answers the same prompts, through the chat template, ends of answers honoured. Engines
take turns prompt by prompt, in an order that alternates, so that a machine that slows down slows them all.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.prompt_sets import PromptSet
from engine import LLM, SamplingParams
from engine.spec_metrics import spec_figures

Ids = list[int]
PLAIN = "plain"


@dataclass(frozen=True)
class Contender:
    """A way to decode. overrides: what it adds to the common ones."""

    name: str
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Racing:
    """batch: prompts that an engine answers side by side. tokens: most new ones of an answer. repeats:
    passes over all prompts that count. temperature: above 0, an answer is drawn with a seed of its prompt,
    the same in every engine; a high one leaves little that repeats itself."""

    batch: int
    tokens: int
    repeats: int
    temperature: float = 0.0

    def params(self, prompt: Ids) -> SamplingParams:
        """How this prompt is answered."""
        seed = sum(prompt) if self.temperature else None
        return SamplingParams(max_tokens=self.tokens, temperature=self.temperature, seed=seed)


@dataclass(frozen=True)
class Took:
    """whole: from the prompt to the last token, prefill included. decoding: from the first token on."""

    tokens: int = 0
    whole: float = 0.0
    decoded: int = 0
    decoding: float = 0.0

    def __add__(self, other: Took) -> Took:
        mine, yours = vars(self).values(), vars(other).values()
        return Took(*(a + b for a, b in zip(mine, yours, strict=True)))

    @property
    def speed(self) -> float:
        """Tokens a second of decoding."""
        return self.decoded / self.decoding

    @property
    def whole_speed(self) -> float:
        """Tokens a second, prefill included."""
        return self.tokens / self.whole


Race = Mapping[str, Sequence[Took]]  # contender -> one sum over all prompts a repeat


def encoded(llm: LLM, texts: Sequence[str]) -> list[Ids]:
    """Through the chat template."""
    return [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


def race(engines: Mapping[str, LLM], prompts: Sequence[Ids], how: Racing) -> Race:
    """Each batch of prompts goes to every engine in turn. The first pass warms up and is not counted."""
    names = list(engines)
    batches = [prompts[start : start + how.batch] for start in range(0, len(prompts), how.batch)]
    passes: dict[str, list[Took]] = {name: [] for name in names}
    for number in range(how.repeats + 1):
        sums = dict.fromkeys(names, Took())
        for index, batch in enumerate(batches):
            for name in names if (number + index) % 2 == 0 else names[::-1]:
                sums[name] += _answer(engines[name], batch, how)
        for name in names if number else ():
            passes[name].append(sums[name])
    return passes


def _answer(llm: LLM, prompts: Sequence[Ids], how: Racing) -> Took:
    """Decoding begins when all have their first token."""
    start = time.perf_counter()
    outputs = llm.generate(list(prompts), [how.params(prompt) for prompt in prompts])
    whole = time.perf_counter() - start
    times = [output.completions[0].token_times for output in outputs]
    begin, end = max(own[0] for own in times), max(own[-1] for own in times)
    decoded = sum(moment > begin for own in times for moment in own)
    return Took(sum(map(len, times)), whole, decoded, end - begin)


def figures(own: Sequence[Took], plain: Sequence[Took]) -> dict[str, Any]:
    """Medians over the repeats. speedup: of decoding, against plain decoding of the same repeat."""
    ratios = [a.speed / b.speed for a, b in zip(own, plain, strict=True)]
    whole = [a.whole_speed / b.whole_speed for a, b in zip(own, plain, strict=True)]
    return {
        "tokens_per_s": statistics.median(took.speed for took in own),
        "speedup": statistics.median(ratios),
        "speedup_with_prefill": statistics.median(whole),
        "ratios": ratios,
    }


def acceptance(llm: LLM, prompts: Sequence[Ids], tokens: int) -> dict[str, Any]:
    """accept_length and acceptance by depth over all prompts."""
    drafts, before = llm.metrics.spec_counts(), llm.metrics.snapshot()
    llm.generate(list(prompts), SamplingParams(max_tokens=tokens))
    after = llm.metrics.snapshot()
    results = int(after["decode_results"] - before["decode_results"])
    made = after["decode_tokens"] - before["decode_tokens"]
    drawn = spec_figures(llm.metrics.spec_counts().since(drafts), results, llm.spec.longest_run - 1)
    kept = ("acceptance_per_position", "accept_length_histogram", "widths")
    return {"accept_length": made / results, **{name: drawn[name] for name in kept}}


def cost_by_width(llm: LLM) -> dict[str, dict[str, float]]:
    """batch -> width -> a step in plain decode steps, as the engine measured them at its start."""
    costs = llm.step_costs
    if costs is None:
        return {}
    batches = sorted({batch for batch, _ in costs.seconds})
    widths = sorted({width for _, width in costs.seconds})
    return {str(b): {str(w): costs.at(b, w) / costs.at(b, 1) for w in widths} for b in batches}


def measure_sets(
    engines: Mapping[str, LLM], sets: Sequence[PromptSet], raced: int, how: Racing
) -> dict[str, Any]:
    """set -> speeds of all engines; ratios against plain decoding."""
    found = {}
    for own in sets:
        prompts = encoded(engines[PLAIN], own.texts[:raced])
        took = race(engines, prompts, how)
        found[own.name] = {name: figures(took[name], took[PLAIN]) for name in engines}
        print(f"{own.name}: timed", file=sys.stderr)
    return found
