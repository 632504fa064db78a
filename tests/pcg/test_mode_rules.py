"""What the rules say of prefill graphs and two batches, before anything is built."""

from __future__ import annotations

import pytest

from engine.compose import compose
from engine.explain import explain
from engine.facts import gather
from engine.rules import verdicts, violations


def base(*overrides: str) -> list[str]:
    model = [] if any(override.startswith("model=") for override in overrides) else ["model=tiny"]
    return [*model, "device=cpu", *overrides]


def verdict(rule: str, *overrides: str) -> tuple[str, str]:
    found = {v.rule: v for v in verdicts(gather(compose(base(*overrides))))}[rule]
    return found.verdict, found.reason


@pytest.mark.parametrize(
    "overrides",
    [
        ("pcg=piecewise",),
        ("pcg=piecewise", "tbo=two_batch", "spec=eagle3", "spec.load=dummy"),
        ("pcg=full", "attention=triton"),
        ("pcg=full", "attention=hybrid", "attention@attention.prefill=triton"),
        ("tbo=two_batch", "attention=hybrid", "spec=ngram"),
    ],
)
def test_accepted(overrides: tuple[str, ...]) -> None:
    assert violations(compose(base(*overrides))) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model=fake", "pcg=piecewise"), ("pcg=piecewise", "model=fake makes none", "use pcg=none")),
        (("pcg=full",), ("backends.torch_sdpa.TorchSDPA (attention=torch)", "use pcg=piecewise")),
        (
            ("pcg=full", "attention=hybrid"),  # triton decodes, but torch prefills
            ("backends.torch_sdpa.TorchSDPA (attention=hybrid)", "prepares on the host"),
        ),
        (
            ("pcg=full", "attention=triton", "tbo=two_batch"),
            ("tbo=two_batch runs it as two halves", "use pcg=piecewise, or tbo=none"),
        ),
        (("pcg=piecewise", "pcg.buckets=[]"), ("pcg.buckets=[] captures nothing",)),
        (("pcg=full", "attention=triton", "pcg.requests=some"), ("pcg.requests=some is neither",)),
    ],
)
def test_refused_with_the_reason_and_a_way_out(overrides: tuple[str, ...], words: tuple[str, ...]) -> None:
    said = " ".join(violations(compose(base(*overrides))))
    for word in words:
        assert word in said


def test_a_model_that_reads_the_pool_itself_may_be_split() -> None:
    assert violations(compose(base("model=fake", "tbo=two_batch"))) == []


def test_what_splitting_does_on_one_device_is_said() -> None:
    """B3: two batches are never silently off, and never said to help where nothing can be hidden."""
    judged, reason = verdict("two batches", "tbo=two_batch", "tbo.min_tokens=48")
    assert judged == "ok"
    assert "nothing to overlap: one device has no communication" in reason
    assert "fewer than 2 requests or 48 tokens run as one batch, and are counted" in reason
    assert "no pass is ever split" in verdict("two batches", "tbo=two_batch", "scheduler.max_running=1")[1]
    assert verdict("two batches")[0] == "not applicable"


def test_explain_tells_it_too() -> None:
    found = explain(compose(base("tbo=two_batch", "pcg=piecewise")))
    told = {rule["rule"]: rule["reason"] for rule in found.as_dict()["rules"]}
    assert "nothing to overlap" in told["two batches"]
    assert "segments between attention calls, which run eagerly: 5 sizes, up to 128" in told["prefill graph"]
    assert "1 sizes, up to 64" in verdict("prefill graph", "pcg=piecewise", "pcg.buckets=[64]")[1]
    full = verdict("prefill graph", "pcg=full", "attention=triton", "pcg.buckets=[64,128]")[1]
    assert "6 of them, up to 128 tokens" in full  # one prompt, eight, as many as run


def test_neither_mode_makes_host_lengths_needed() -> None:
    """Y5: the combination that others force onto host lengths."""
    for tbo, pcg in (("two_batch", "piecewise"), ("two_batch", "none"), ("none", "piecewise")):
        for spec in (("spec=ngram",), ("spec=eagle3", "spec.load=dummy")):
            found = explain(compose(base(f"tbo={tbo}", f"pcg={pcg}", *spec)))
            assert found.accepted
            assert not found.needs_cpu_seq_lens
