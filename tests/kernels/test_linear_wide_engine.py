"""An engine whose gated products of 65 to 256 tokens are ours: the same answers as with torch's products.

Prompts have passes of so many tokens. fp32, which the interpreter computes as it is: tables hold 16-bit ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from linear_cases import CPU
from support.engines import answers, make

from engine.kernel_choices.plans import NORM_GATED, Choices, Plan
from engine.params import SamplingParams

TINY = (
    "model=tiny", "model.dtype=float32", "model.layers=2", "model.heads=3", "model.kv_heads=1",
    "model.vocab=259", "threads=1", "device=cpu", "scheduler.chunk_tokens=256", "attention=triton",
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=3, ignore_eos=True)
PROMPTS = [[(13 * i) % 251 for i in range(70)], [(7 * i) % 251 for i in range(150)]]
MODES = {
    "plain": (),
    "step graphs": ("graph=step", "graph.sizes=[2]"),
    "prefill graphs": ("pcg=full", "pcg.buckets=[96,192]", "pcg.requests=[1]"),
}


def planned(choices: Choices, stage: str, dtype: str, tokens: int, n: int, k: int) -> Plan | None:
    if stage != NORM_GATED or not 64 < tokens <= 256:
        return None
    return Plan("waves" if tokens <= 128 else "even", 64, 16, 4, 3, gate=True)


@CPU
@pytest.mark.parametrize("mode", MODES)
def test_answers_do_not_depend_on_who_computes_many_tokens(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import backends.triton_products as ops

    used: list[tuple[str, int]] = []
    plain = vars(ops)["product"]

    def counted(plan: Plan, x: Any, *operands: Any, **named: Any) -> Any:
        used.append((plan.kernel, x.shape[0]))
        return plain(plan, x, *operands, **named)

    monkeypatch.setattr(ops, "product", counted)
    found = []
    for plans in (Choices.plan, planned):
        monkeypatch.setattr(Choices, "plan", plans)
        with make(*TINY, "kernels=torch", *MODES[mode]) as llm:
            found.append([answers(llm.generate([prompt], GREEDY)) for prompt in PROMPTS])
        assert bool(used) is (plans is planned)
    assert found[0] == found[1]
    sizes = (96, 192) if mode == "prefill graphs" else (70, 150)
    assert {("waves", sizes[0]), ("even", sizes[1])} <= set(used)
