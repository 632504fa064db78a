"""What users of such engines reported and no other test of this engine holds, by the id of the report."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engines import FAKE, TINY, answers, make, run

from engine.batch import ForwardBatch, Mode, ScheduledStep
from engine.errors import InternalError, UserError
from engine.params import SamplingParams
from engine.rules import compose_checked
from engine.runner import ModelRunner
from engine.sampling.columns import pack_rows
from engine.upload import Uploader

EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
DRAFTERS = {
    "none": ("spec=none",),
    "ngram": ("spec=ngram", "spec.adaptive=false", "spec.drafts=4"),
    "ngram tree": ("spec=ngram", "spec.adaptive=false", "spec.drafts=3", "spec.branches=2"),
    "eagle3": EAGLE3,
    "eagle3 tree": (*EAGLE3, "spec.num_steps=3", "spec.topk=2", "spec.num_draft_tokens=6"),
}
PROMPTS = [[(7 * i + j) % 251 for j in range(3 + 9 * i)] for i in range(6)]
GREEDY = SamplingParams(max_tokens=14, ignore_eos=True)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_o6_no_placeholder_reaches_the_embedding(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8 tokens hold decoding requests up again and again, drafts are absent or too many: every id
    of every pass is a token, though unwritten places of the table are poisoned."""
    seen: list[tuple[Mode, int, int]] = []
    forward = ModelRunner.forward

    def watched(self: ModelRunner, batch: ForwardBatch, *rest: Any, **options: Any) -> Any:
        if batch.input_ids.numel():
            seen.append((batch.mode, int(batch.input_ids.min()), int(batch.input_ids.max())))
        return forward(self, batch, *rest, **options)

    monkeypatch.setattr(ModelRunner, "forward", watched)
    small = ("scheduler.chunk_tokens=8", "scheduler.max_running=4", "overlap.debug=true")
    found = run(PROMPTS, GREEDY, *TINY, *small, *DRAFTERS[drafter])
    assert {mode for mode, _, _ in seen} == {Mode.EXTEND, Mode.VERIFY}
    assert min(low for _, low, _ in seen) >= 0
    assert max(high for _, _, high in seen) < 512
    monkeypatch.undo()
    assert found == run(PROMPTS, GREEDY, *TINY, "overlap=none")


def steps() -> list[ScheduledStep]:
    return [
        ScheduledStep(
            i, Mode.VERIFY, (3, 5 + i), (9, 9), (1, 1), (True, True), 1, new_pages=((3, i, 40 + i),)
        )
        for i in range(4)
    ]


def test_o2_a_copy_that_is_made_late_still_brings_its_own_step() -> None:
    """The host has packed three steps more by then."""
    packer = Uploader(torch.device("cpu"), row_context=100, row_pages=8, pack_sampling=pack_rows)
    packed = [packer.pack(step) for step in steps()]
    for i, one in enumerate(packed):
        inputs = packer.to_device(one)
        assert inputs.batch.rows.tolist() == [3, 5 + i]
        assert inputs.writes is not None
        assert inputs.writes.page_index is not None
        assert inputs.writes.page_index.tolist() == [3 * 8 + i]


@pytest.mark.gpu
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_o2_slow_copies_change_nothing(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some milliseconds of sleep on the stream before every upload: the host is far ahead of the copies."""
    send = Uploader.to_device

    def slow(self: Uploader, packed: Any) -> Any:
        torch.cuda._sleep(10_000_000)
        return send(self, packed)

    options = (*TINY, "device=cuda", "attention=triton", *DRAFTERS[drafter])
    plain = run(PROMPTS, GREEDY, *options, "overlap=none")
    monkeypatch.setattr(Uploader, "to_device", slow)
    assert run(PROMPTS, GREEDY, *options, "overlap=future", "overlap.debug=true") == plain


def test_k3_a_broken_account_names_its_holders_and_serving_goes_on() -> None:
    plain = run(PROMPTS, GREEDY, *TINY)
    with make(*TINY) as llm:
        first = llm.add(PROMPTS[3], GREEDY)
        for _ in range(3):
            llm.step()
        lost = llm._scheduler.ledger._free.pop()
        with pytest.raises(InternalError, match=rf"page accounting.*{first}"):
            llm.check()
        while llm.output(first) is None:
            llm.step()
        assert answers(llm.generate(PROMPTS, GREEDY)) == plain
        llm._scheduler.ledger._free.append(lost)
        llm.check()


@pytest.mark.parametrize("spec", ["none", "ngram", "eagle3"])
@pytest.mark.parametrize("architecture", ["Qwen3NextForCausalLM", "MambaForCausalLM", "JambaForCausalLM"])
def test_l9_models_with_a_recurrent_state_are_refused(tmp_path: Path, architecture: str, spec: str) -> None:
    """Rejected drafts cannot be taken back out of a state: no such model is served, as is said at start."""
    layers = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], **layers}))
    with pytest.raises(UserError, match=f"{architecture}, which is not supported; supported are Llama"):
        compose_checked(["model=local", f"model.path={tmp_path}", f"spec={spec}"])


@pytest.mark.parametrize("name", ["eagle", "eagle2", "draft_model"])
def test_q2_other_kinds_of_drafts_are_refused_by_name(name: str) -> None:
    with pytest.raises(
        UserError, match=f"spec={name}: spec has no option {name}; it has eagle3, ngram, none"
    ):
        compose_checked([f"spec={name}", "model=tiny"])


@pytest.mark.parametrize("drafter", ["ngram", "eagle3", "eagle3 tree"])
def test_o10_a_long_prompt_in_chunks_one_step_ahead(drafter: str) -> None:
    """2,500 tokens with a needle at the front: any loss on the way would change the answer of both loops."""
    prompt = [251, 252, *((7 * i * i + i) % 250 for i in range(2500)), 251]
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=0)
    answer = {}
    for name, options in {
        "plain": ("overlap=none", "scheduler.chunk_tokens=4096"),
        "none": ("overlap=none", "scheduler.chunk_tokens=512", *DRAFTERS[drafter]),
        "future": ("overlap=future", "scheduler.chunk_tokens=512", *DRAFTERS[drafter]),
    }.items():
        with make(*TINY, "cache.max_context=3000", "scheduler.max_running=2", *options) as llm:
            [output] = llm.generate([prompt], params)
            answer[name] = answers([output])
    assert answer["none"] == answer["future"] == answer["plain"]


@pytest.mark.parametrize("loop", ["none", "future"])
def test_s4_ended_requests_that_nobody_asks_for_are_no_work(loop: str) -> None:
    """A loop over has_work ends, whatever was cancelled, and the outputs are still there."""
    with make(*FAKE, f"overlap={loop}", "scheduler.max_running=1") as llm:
        names = [llm.add([7, i], GREEDY) for i in range(4)]
        llm.step()
        assert llm.cancel(names[0])
        assert llm.cancel(names[2])
        for _ in range(200):
            if not llm.has_work():
                break
            llm.step()
        assert not llm.has_work()
        found = [llm.output(name) for name in names]
        llm.check()
    reasons = [output.completions[0].finish_reason for output in found if output is not None]
    assert reasons == ["cancelled", "length", "cancelled", "length"]


def test_l3_p24_prompts_that_repeat_do_make_drafts(caplog: pytest.LogCaptureFixture) -> None:
    """Without drafts, equal answers would prove nothing: the prompts of both reports, at both lengths."""
    caplog.set_level(logging.ERROR, "syncless")
    text = "".join(f"<<function=tool_{i}>> does {i * i} things. " for i in range(6))
    for prompt, ngram in (
        ("serving" * 48, ("spec.drafts=4", "spec.min_match=2", "spec.max_match=5")),
        (text, ("spec.drafts=4", "spec.min_match=2")),
        (text, ("spec.drafts=4", "spec.min_match=8")),
    ):
        copying = SamplingParams(
            max_tokens=32, ignore_eos=True, logit_bias=dict.fromkeys(map(ord, "sevring"), 9)
        )
        plain = run([prompt], copying, *TINY)
        with make(*TINY, "spec=ngram", "spec.adaptive=false", *ngram) as llm:
            assert answers(llm.generate([prompt], copying)) == plain
            assert llm.metrics.snapshot()["drafted_tokens"] > 0, ngram
