"""Engines for tests: small, fp32, built through the same compose, rules and container as a user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine import rules
from engine.compose import compose
from engine.llm import LLM
from engine.params import SamplingParams
from engine.request import RequestOutput
from speculative.base import Speculator

TINY = ("model=tiny", "model.dtype=float32", "threads=1")
FAKE = ("model=fake", "threads=1")


def make(*overrides: str, parts: Mapping[str, object] | None = None) -> LLM:
    """An engine; `parts` replace what the container would build (a drafter brings its plan)."""
    resolved = compose(overrides)
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
