"""How many operations a captured decode step has beside its layers' own: each is a node of the graph, which
costs a GPU a microsecond or two however little it does, and breaks a chain of dependent launches."""

from __future__ import annotations

from collections import Counter

import pytest
from support.engines import TINY, make

from engine.graphs import capture
from engine.kernel_choices.plans import NORM_GATED, Choices, Plan
from engine.params import SamplingParams

SMALL = (
    *TINY, "model.layers=2", "attention=triton", "graph=step", "graph.sizes=[2]", "cache.max_context=64",
    "sampling.max_tokens=4",
)  # fmt: skip
EAGLE3 = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=false")
# (options, launches of own kernels, torch operations), layers and heads apart. Drafts read their embeddings
# in the norms in front of their layer.
STEPS = {
    "plain": ((), 6, 0),
    "ngram": (("spec=ngram", "spec.adaptive=false", "spec.drafts=4"), 10, 0),
    "forced acceptance": (  # what a benchmark forces costs what a real draft does
        ("spec=ngram", "spec.adaptive=false", "spec.drafts=4", "spec.simulate_accept_length=2.5"), 10, 0,
    ),
    "eagle3 chain": ((*EAGLE3, "spec.num_steps=4"), 12, 0),
    "eagle3 tree": (
        (*EAGLE3, "spec.topk=2", "spec.num_steps=3", "spec.num_draft_tokens=6"), 24, 0,
    ),
}  # fmt: skip
LAYERS = {
    "_rms_norm", "_norm_pair", "_rope_store", "_attention_tile", "_linear_tile", "_sum_parts", "_silu_mul",
    "_pick",
}  # fmt: skip


def planned(choices: object, stage: str, *place: object) -> Plan:
    """Every product has a plan, as on a GPU that was tuned."""
    return Plan("tile", 64, 64, gate=stage == NORM_GATED)


def counted(name: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Operations of the captured step, by name."""
    recordings = []
    record = capture.record

    def kept(work: object) -> object:
        made = record(work)  # type: ignore[arg-type,var-annotated]
        recordings.append(made[0])
        return made

    monkeypatch.setattr(capture, "record", kept)
    monkeypatch.setattr(Choices, "plan", planned)
    with make(*SMALL, *STEPS[name][0]) as llm:
        llm.generate([[1, 2, 3], [4, 5]], SamplingParams(max_tokens=3, ignore_eos=True))
        assert llm.metrics.eager_decode_steps == 0
    [recording] = recordings
    assert len(recording.names) == len(recording.operations)
    return Counter(recording.names)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_no_more_small_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted(name, monkeypatch)
    beside = {op: count for op, count in found.items() if op not in LAYERS}
    torchs = sum(count for op, count in beside.items() if op.startswith("aten::"))
    assert found["_attention_tile"] >= 2, "the layers were captured"
    launches, operations = STEPS[name][1:]
    assert sum(beside.values()) - torchs <= launches, beside
    assert torchs <= operations, beside
