"""The four faults that this engine is a reaction to, as a kind: a slot that is None, a part that declares
nothing, host lengths that are absent or far off, and a batch beyond every size seen before.

Each runs under every drafter that the engine has; outputs must be those of plain decoding.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.engines import TINY, answers, make, run

import engine.scheduler
from backends.base import AttentionBackend
from backends.torch_sdpa import TorchSDPA
from engine.batch import ForwardBatch, Mode, ScheduledStep
from engine.compose import compose
from engine.explain import explain
from engine.params import SamplingParams

PROMPTS = [[65 + i, 2 * i, 7, 9, i] * (1 + 3 * i) for i in range(5)]
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)
EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
TREE = (*EAGLE3, "spec.num_steps=3", "spec.topk=2", "spec.num_draft_tokens=6")
CORNER = (*EAGLE3, "spec.num_steps=1", "spec.topk=1", "spec.num_draft_tokens=2")
DRAFTERS = {
    "none": ("spec=none",),
    "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=4"),
    "ngram tree": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3", "spec.branches=2"),
    "eagle3": EAGLE3,
    "eagle3 tree": TREE,
    "eagle3 1/1/2": CORNER,
}


class Undeclared(TorchSDPA):
    """Says nothing about lengths, so it is given exact ones, and checks that they are the device's."""

    host_lens = AttentionBackend.host_lens

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        if batch.mode is Mode.VERIFY:
            assert list(batch.seq_lens.exact("test")) == batch.seq_lens.device.tolist()
            SEEN.add(self._context.role)
        super().init_forward_metadata(batch)


SEEN: set[str] = set()


@pytest.fixture
def undeclared(monkeypatch: pytest.MonkeyPatch) -> str:
    """The override that chooses it: the module is found under the name of an allowed package."""
    monkeypatch.setitem(sys.modules, "backends.undeclared", sys.modules[__name__])
    monkeypatch.setattr(Undeclared, "__module__", "backends.undeclared")
    SEEN.clear()
    return "attention._target_=backends.undeclared.Undeclared"


@pytest.fixture(scope="module")
def plain() -> list[tuple[tuple[int, ...], str, str]]:
    return run(PROMPTS, GREEDY, *TINY, "overlap=none")


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize(
    ("drafter", "draft", "extend"),
    [
        ("none", False, False),
        ("ngram", False, False),
        ("eagle3", True, True),
        ("eagle3 tree", True, True),
        ("eagle3 1/1/2", False, True),
    ],
)
def test_a_slot_without_a_forward_is_none_and_forces_nothing(
    drafter: str, draft: bool, extend: bool, attention: str
) -> None:
    found = explain(compose([*TINY, f"attention={attention}", *DRAFTERS[drafter]]))
    slots = {slot.role: slot.backend is not None for slot in found.facts.slots}
    assert slots == {"target": True, "draft": draft, "draft_extend": extend}
    assert (found.needs_cpu_seq_lens, found.caused_by) == (False, ())
    assert found.accepted


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_built_engine_agrees_with_the_facts(drafter: str) -> None:
    with make(*TINY, *DRAFTERS[drafter]) as llm:
        container = llm._container
        slots = {role: backend is not None for role, backend in container.slots()}
        assert container.needs_lens() == (False, ())
        found = explain(compose([*TINY, *DRAFTERS[drafter]]))
        assert slots == {slot.role: slot.backend is not None for slot in found.facts.slots}


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_backend_that_declares_nothing_gets_exact_lengths(
    drafter: str, loop: str, undeclared: str, plain: list[tuple[tuple[int, ...], str, str]]
) -> None:
    with make(*TINY, undeclared, f"overlap={loop}", *DRAFTERS[drafter]) as llm:
        needed, causes = llm._container.needs_lens()
        assert needed
        assert any("target attention (Undeclared)" in cause for cause in causes)
        outputs = answers(llm.generate(PROMPTS, GREEDY))
        llm.check()
    assert outputs == plain
    assert "target" in SEEN


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_true_lengths_far_below_the_bound_change_nothing(
    drafter: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds size buffers and nothing else; the exact lengths are on the device alone."""
    prompts = PROMPTS if attention == "torch" else PROMPTS[:2]
    params = GREEDY if attention == "torch" else replace(GREEDY, max_tokens=5)
    plain = run(prompts, params, *TINY, "overlap=none")
    honest = engine.scheduler.verify_step

    def inflated(*args: object) -> ScheduledStep:
        step = honest(*args)  # type: ignore[arg-type]
        return replace(step, bounds=tuple(bound + 170 for bound in step.bounds))

    monkeypatch.setattr(engine.scheduler, "verify_step", inflated)
    small = (
        "cache.max_context=256",
        "cache.tokens=2048",
        "scheduler.max_running=5",
        "sampling.max_tokens=20",
        f"attention={attention}",
    )
    assert run(prompts, params, *TINY, *small, *DRAFTERS[drafter]) == plain


@pytest.mark.parametrize("attention", ["torch", "triton"])
@pytest.mark.parametrize("loop", ["none", "future"])
def test_a_batch_beyond_all_sizes_seen_right_after_accepted_drafts(loop: str, attention: str) -> None:
    """One looping request whose drafts are accepted; then many join it at once."""
    many = 24 if attention == "torch" else 4
    loopy = [5, 6, 7, 8] * 6
    others = [[9 + i, 3, 4, 9 + i, 3, 4, 9 + i, 3] for i in range(many)]
    params = replace(GREEDY, max_tokens=16 if attention == "torch" else 6)
    options = (*TINY, "spec=ngram", "spec.adaptive=false", "spec.drafts=4", "overlap.debug=true")
    with make(*options, f"overlap={loop}", f"attention={attention}") as llm:
        first = llm.add(loopy, replace(params, max_tokens=40 if attention == "torch" else 12))
        while llm.metrics.accepted_drafts < 3 and llm.has_work():
            llm.step()
        assert llm.metrics.accepted_drafts >= 3, "several tokens were accepted in the verify before"
        names = [first, *(llm.add(prompt, params) for prompt in others)]
        while llm.has_work() and any(llm._live.get(n) is not None and llm._live[n].open for n in names):
            llm.step()
        found = [llm.output(name) for name in names]
        llm.check()
    assert all(output is not None for output in found)
    assert answers([o for o in found[1:] if o is not None]) == run(others, params, *TINY, "overlap=none")


def test_no_length_is_stored_beside_its_source() -> None:
    """The maximum is derived from an immutable value each time: there is no field that could go stale."""
    from engine.batch import SeqLens

    lens = SeqLens(torch.tensor([3, 4]), (5, 6))
    assert lens.max_bound == 6
    assert replace(lens, bound=(7, 9)).max_bound == 9
    with pytest.raises(AttributeError):
        lens.bound = (1, 2)  # type: ignore[misc]
    stale = ("seq_lens_sum", "seq_lens_cpu", "total_seq_lens")
    sources = [p for top in ("engine", "backends", "speculative") for p in Path(top).rglob("*.py")]
    assert sources
    assert not [p for p in sources if any(f".{name} =" in p.read_text() for name in stale)]
