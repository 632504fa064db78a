"""The drafter's attention slots: another backend, one that declares nothing, an empty slot, Triton."""

from __future__ import annotations

from typing import Any

import pytest
from support.eagle3 import CHAIN, PROMPTS, TREE, Audit, Script, bigrams, engine, teach
from support.engines import TINY, answers, run

from backends import torch_sdpa
from backends.base import AttentionBackend
from backends.torch_sdpa import TorchSDPA
from engine.batch import ForwardBatch, Mode
from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.llm import LLM
from engine.params import SamplingParams
from speculative.width import WidthChoice

SMALL = (
    "model.layers=3",
    "model.heads=3",
    "model.kv_heads=1",
    "model.vocab=259",
    "model.hidden=32",
    "device=cpu",
)
SHORT = SamplingParams(max_tokens=7, ignore_eos=True)
SHAPES = {
    "chain": (*CHAIN, "spec.num_steps=3", "spec.num_draft_tokens=4"),
    "tree": (*CHAIN, "spec.topk=2", "spec.num_steps=3", "spec.num_draft_tokens=6"),
}


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("draft", ["triton", "torch"])
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_drafts_and_verifies(shape: str, draft: str, page: int) -> None:
    """attention@spec.draft_attention=torch beside attention=triton; without it the draft follows."""
    prompts = [[5], [7, 9, 11] * 6, [(13 * i) % 251 for i in range(20)]]
    own = () if draft == "triton" else ("attention@spec.draft_attention=torch",)
    plain = run(prompts, SHORT, *TINY, *SMALL, "overlap=none")
    overrides = (*SMALL, *SHAPES[shape], "attention=triton", *own, f"cache.page_size={page}")
    with engine(*overrides) as llm:
        teach(llm, bigrams(prompts, SHORT, *SMALL))
        audit = Audit(llm)
        slots = dict(llm._container.slots())
        found = answers(llm.generate(prompts, SHORT))
    assert found == plain
    assert max(audit.accepted) > 0
    names = {role: type(backend).__name__ for role, backend in slots.items()}
    other = "TorchSDPA" if draft == "torch" else "TritonAttention"
    assert names == {"target": "TritonAttention", "draft": other, "draft_extend": other}


class Undeclared(TorchSDPA):
    """Says nothing of host lengths, so the mirror is kept for it; checks that the mirror tells the truth."""

    host_lens = AttentionBackend.host_lens
    looked = 0

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        if batch.mode is not Mode.IDLE:
            assert batch.seq_lens.exact("a backend under test") == tuple(batch.seq_lens.device.tolist())
            Undeclared.looked += 1
        super().init_forward_metadata(batch)


Undeclared.__module__ = torch_sdpa.__name__


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("shape", [*SHAPES, "adaptive"])
def test_a_draft_backend_that_declares_nothing(
    monkeypatch: pytest.MonkeyPatch, shape: str, loop: str
) -> None:
    """The flag is computed over all three slots, and every draft pass carries exact lengths then."""
    monkeypatch.setattr(torch_sdpa, "Undeclared", Undeclared, raising=False)
    monkeypatch.setattr(Undeclared, "looked", 0)
    chosen, parts = SHAPES.get(shape, (*CHAIN, "spec.adaptive=true")), {}
    if shape == "adaptive":
        widths = [WidthChoice(3), WidthChoice(1), WidthChoice(1), WidthChoice(5, resume=True)]
        parts = {"widths": Script(widths), "costs": None}
    cfg: dict[str, Any] = dict(compose([*TINY, *chosen, f"overlap={loop}", "overlap.debug=true"]).cfg)
    cfg["spec"]["draft_attention"] = {"_target_": "backends.torch_sdpa.Undeclared"}
    with LLM.from_config(cfg, parts=parts) as llm:
        needed, causes = llm._container.needs_lens()
        teach(llm, bigrams(PROMPTS[:3], SHORT))
        found = answers(llm.generate(PROMPTS[:3], SHORT))
    assert needed
    assert causes == ("draft attention (Undeclared)", "draft_extend attention (Undeclared)")
    assert Undeclared.looked >= 8
    assert found == run(PROMPTS[:3], SHORT, *TINY, "overlap=none")


def test_an_empty_draft_slot_is_skipped() -> None:
    """One step: no drafting forward, so its slot is None and asks for nothing."""
    with engine(*CHAIN, "spec.num_steps=1", "spec.num_draft_tokens=2") as llm:
        slots = dict(llm._container.slots())
        needed, causes = llm._container.needs_lens()
    assert slots["draft"] is None
    assert slots["draft_extend"] is not None
    assert (needed, causes) == (False, ())


def test_lengths_far_below_their_bounds() -> None:
    """Host lengths absent in every mode, and bounds that lie far above the truth: outputs do not care."""
    plain = run(PROMPTS[:3], SHORT, *TINY, "overlap=none")
    for shape in SHAPES.values():
        with engine(*shape, "overlap=none") as llm:
            step = llm._container.step()
            inner = step.run

            def loose(scheduled: Any, inputs: Any, lens: Any, run_step: Any = inner) -> Any:
                if scheduled.mode is Mode.VERIFY:
                    bounds = tuple(bound + 40 for bound in scheduled.bounds)
                    scheduled = type(scheduled)(**{**vars(scheduled), "bounds": bounds})
                assert lens is None
                return run_step(scheduled, inputs, lens)

            step.run = loose
            teach(llm, bigrams(PROMPTS[:3], SHORT))
            assert answers(llm.generate(PROMPTS[:3], SHORT)) == plain


@pytest.mark.parametrize("spec", ["none", "ngram"])
def test_drafters_without_a_model_refuse_draft_attention(spec: str) -> None:
    with pytest.raises(UserError, match=f"spec={spec} takes no such part.*spec=eagle3 only"):
        compose([f"spec={spec}", "attention@spec.draft_attention=torch"])


def test_the_draft_follows_the_targets_attention() -> None:
    chosen = ["model=tiny", *CHAIN, "attention=triton"]
    found = explain(compose(chosen))
    names = [slot.backend.name.rpartition(".")[2] for slot in found.facts.slots if slot.backend]
    assert names == ["TritonAttention"] * 3
    other = explain(compose([*chosen, "attention@spec.draft_attention=torch"]))
    names = [slot.backend.name.rpartition(".")[2] for slot in other.facts.slots if slot.backend]
    assert names == ["TritonAttention", "TorchSDPA", "TorchSDPA"]


def test_a_batch_larger_than_anything_seen_right_after_accepted_drafts() -> None:
    """Sizes come from the bounds at hand: 2 requests draft and accept, then 12 more join at once."""
    few = [SamplingParams(max_tokens=12, ignore_eos=True)] * 2
    prompts = [[3 * i + 1, 7, i] for i in range(14)]
    with engine(*TREE, "overlap=future") as llm:
        teach(llm, bigrams(prompts, few[0]))
        first = answers(llm.generate(prompts[:2], few))
        joined = answers(llm.generate(prompts, [SHORT] * 14))
        accepted = llm.metrics.snapshot()["accepted_drafts"]
    assert first == run(prompts[:2], few, *TINY, "overlap=none")
    assert joined == run(prompts, SHORT, *TINY, "overlap=none")
    assert accepted > 0
