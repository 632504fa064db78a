"""Engines for tests: small, fp32, built through the same compose, rules and container as a user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine import rules
from engine.answers import RequestOutput
from engine.compose import compose
from engine.llm import LLM
from engine.params import SamplingParams
from speculative.base import Speculator

TINY = ("model=tiny", "model.dtype=float32", "threads=1")
GPU_TOKENS = 32768  # eight of the longest requests
FAKE = ("model=fake", "threads=1")


def sized(overrides: Sequence[str]) -> tuple[str, ...]:
    """On a GPU a pool of fixed size, as large as the tiny model needs: automatic ones of several processes
    take the card from each other. A test that is about sizes names one."""
    asked = any(line.startswith(("cache.tokens=", "cache.max_context=")) for line in overrides)
    small = "model=tiny" in overrides and "device=cuda" in overrides and not asked
    return (*overrides, f"cache.tokens={GPU_TOKENS}") if small else tuple(overrides)


def make(*overrides: str, parts: Mapping[str, object] | None = None) -> LLM:
    """An engine; `parts` replace what the container would build (a drafter brings its plan)."""
    resolved = compose(sized(overrides))
    rules.check(resolved)
    drafter = (parts or {}).get("speculator")
    if isinstance(drafter, Speculator):
        parts = {"plan": drafter.plan, **(parts or {})}
    return LLM.from_config(resolved.cfg, parts=parts)


def answers(outputs: Sequence[RequestOutput]) -> list[tuple[tuple[int, ...], str, str]]:
    """What must not change: ids, text and finish reason of every sample."""
    return [(c.token_ids, c.text, c.finish_reason) for o in outputs for c in o.completions]


def run(
    prompts: Sequence[Sequence[int] | str],
    params: SamplingParams | Sequence[SamplingParams],
    *overrides: str,
    parts: Mapping[str, object] | None = None,
) -> list[tuple[tuple[int, ...], str, str]]:
    """Answers of a fresh engine; its accounting is checked at the end."""
    with make(*overrides, parts=parts) as llm:
        outputs = answers(llm.generate(prompts, params))
        llm.check()
    return outputs


def cpu_answers(
    prompts: Sequence[Sequence[int] | str], params: SamplingParams | Sequence[SamplingParams]
) -> list[tuple[tuple[int, ...], str, str]]:
    """Answers of the plainest engine: one request at a time on the CPU, nothing overlapped, no cache."""
    return run(prompts, params, *TINY, "device=cpu", "overlap=none", "cache=none", "scheduler.max_running=1")
