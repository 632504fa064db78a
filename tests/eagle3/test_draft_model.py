"""The draft model equals a plain reference head: every position, chunking, page size, backend and variant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from draft_variants import BACKENDS, LENGTHS, VARIANTS, Run, close, variant
from eagle3_cases import HIDDEN, USUAL, VOCAB, Paged, matrix, target_embedding, toy_target, write
from support.eagle3_reference import ReferenceHead

from backends.base import AttentionBackend
from backends.torch_sdpa import TorchSDPA
from engine.batch import ForwardBatch, Mode, SeqLens
from speculative.eagle3.checkpoint import load_draft


@BACKENDS
@pytest.mark.parametrize("page_size", [1, 16])
def test_teacher_forced_logits_equal_the_reference_at_each_position(
    backend: type[AttentionBackend], page_size: int, tmp_path: Path
) -> None:
    """Whole prompts at once, then four static rows a request, as draft-extend runs them."""
    run = Run(tmp_path, variant())
    paged = run.paged(backend, page_size)
    known = [n - 4 for n in LENGTHS]
    first = paged.step(
        [x[:n] for x, n in zip(run.ids, known, strict=True)],
        [run.draft.fuse(x[:n]) for x, n in zip(run.states, known, strict=True)],
    )
    last = paged.step(
        [x[n:] for x, n in zip(run.ids, known, strict=True)],
        [run.draft.fuse(x[n:]) for x, n in zip(run.states, known, strict=True)],
        verify=True,
    )
    for found, ids, states in zip(zip(first, last, strict=True), run.ids, run.states, strict=True):
        expected = run.reference.run(ids, run.reference.fuse(states))
        close(torch.cat(found), expected)
        logits = run.draft.logits(torch.cat(found))
        assert logits.dtype == torch.float32
        assert logits.std() > 0.3
        close(logits, run.reference.logits(expected))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_equals_the_reference(name: str, tmp_path: Path) -> None:
    run = Run(tmp_path, VARIANTS[name]())
    assert run.draft.aux_layers == (() if name.startswith("no-aux") else USUAL)
    paged = run.paged(TorchSDPA, 16)
    found = paged.step(run.ids, [run.draft.fuse(x) for x in run.states])
    for out, ids, states in zip(found, run.ids, run.states, strict=True):
        expected = run.reference.run(ids, run.reference.fuse(states))
        close(out, expected)
        close(run.draft.logits(out), run.reference.logits(expected))


@pytest.mark.parametrize("name", ["plain", "norm-output", "norm-before-residual"])
@BACKENDS
def test_a_chain_feeds_on_its_own_output(name: str, backend: type[AttentionBackend], tmp_path: Path) -> None:
    """Steps after the first take the draft's own state, at the positions that follow."""
    run = Run(tmp_path, VARIANTS[name]())
    paged = run.paged(backend, 16)
    states = [out[-1:] for out in paged.step(run.ids, [run.draft.fuse(x) for x in run.states])]
    ids, hidden = list(run.ids), [run.reference.fuse(x) for x in run.states]
    for _ in range(3):
        drafts = [run.draft.best(state).long() for state in states]
        hidden = [torch.cat((h, run.reference.run(i, h)[-1:])) for i, h in zip(ids, hidden, strict=True)]
        ids = [torch.cat((i, draft)) for i, draft in zip(ids, drafts, strict=True)]
        states = paged.step(drafts, states, verify=True)
        for state, i, h in zip(states, ids, hidden, strict=True):
            close(state, run.reference.run(i, h)[-1:])


@pytest.mark.parametrize("page_size", [1, 16])
def test_draft_kv_does_not_depend_on_the_chunks(page_size: int, tmp_path: Path) -> None:
    run = Run(tmp_path, variant())
    whole, chunked = run.paged(TorchSDPA, page_size), run.paged(TorchSDPA, page_size)
    whole.step(run.ids, [run.draft.fuse(x) for x in run.states])
    for start in range(0, max(LENGTHS), 16):
        run.feed(chunked, start, start + 16)
    for request, (ids, states) in enumerate(zip(run.ids, run.states, strict=True)):
        slots = whole.slots(request, 0, len(ids))
        close(chunked.kv[0].k[slots], whole.kv[0].k[slots])
        close(chunked.kv[0].v[slots], whole.kv[0].v[slots])
        close(whole.kv[0].k[slots], run.reference.keys(ids, run.reference.fuse(states)))


def test_store_writes_the_kv_of_forward_and_needs_no_attention(tmp_path: Path) -> None:
    run = Run(tmp_path, variant())
    full, stored = run.paged(TorchSDPA, 16), run.paged(TorchSDPA, 16)
    hidden = [run.draft.fuse(x) for x in run.states]
    batch = stored.batch(run.ids, False)
    full.step(run.ids, hidden)
    run.draft.store(batch, torch.cat(hidden), stored.attention, stored.kv)
    assert full.kv[0].k.abs().sum() > 0
    assert torch.equal(stored.kv[0].k, full.kv[0].k)
    assert torch.equal(stored.kv[0].v, full.kv[0].v)


def test_top_is_the_head_in_target_ids(tmp_path: Path) -> None:
    run = Run(tmp_path, variant())
    state = torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(0))
    config_ids = torch.arange(48) * 2 + 1
    expected = run.reference.logits(state).log_softmax(1)
    for k in (1, 3):
        ids, logprobs = run.draft.top(state, k)
        assert (ids.dtype, logprobs.dtype) == (torch.int32, torch.float32)
        values, index = expected.topk(k, dim=1)
        assert torch.equal(ids.long(), config_ids[index])
        close(logprobs, values)
    best = run.draft.best(state)
    assert best.dtype == torch.int32
    assert torch.equal(best, run.draft.top(state, 1)[0][:, 0])


def idle_batch() -> ForwardBatch:
    none = torch.zeros(0, dtype=torch.int64)
    lens = SeqLens(torch.zeros(0, dtype=torch.int32), ())
    start, table = torch.zeros(1, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32)
    return ForwardBatch(Mode.IDLE, none, none, none, none, lens, start, (), table)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int4"])
def test_an_idle_pass_works(weights: str, tmp_path: Path) -> None:
    config, tensors = variant()
    draft = load_draft(write(tmp_path, config, tensors), toy_target(weights))
    paged = Paged(draft, TorchSDPA, 1, 1)
    before = paged.kv[0].k.clone()
    paged.attention.init_forward_metadata(idle_batch())
    hidden = draft.fuse(torch.zeros(0, 3 * HIDDEN, dtype=draft.dtype))
    out = draft.forward(idle_batch(), hidden, paged.attention, paged.kv)
    assert out.shape == (0, HIDDEN)
    assert draft.top(out, 2)[0].shape == (0, 2)
    assert torch.equal(paged.kv[0].k, before)


def test_positions_past_its_own_maximum_equal_the_reference(tmp_path: Path) -> None:
    """The draft was trained for 32 positions, the target for 512: rows past 32 are computed as the others."""
    config, tensors = variant(max_position_embeddings=32)
    run = Run(tmp_path, (config, tensors))
    assert run.draft.max_positions == 32
    ids, states = torch.arange(60) % VOCAB, matrix("states past the maximum", 60, HIDDEN)
    expected = run.reference.run(ids, states)
    close(Paged(run.draft, TorchSDPA, 16, 1).step([ids], [states])[0], expected)


def test_bfloat16_stays_near(tmp_path: Path) -> None:
    config, tensors = variant()
    draft = load_draft(write(tmp_path, config, tensors), toy_target("bfloat16"))
    assert draft.kv_layout.dtype == "bfloat16"
    ids, states = torch.arange(30), torch.randn(30, 3 * HIDDEN, generator=torch.Generator().manual_seed(0))
    found = Paged(draft, TorchSDPA, 16, 1).step([ids], [draft.fuse(states.bfloat16())])[0]
    reference = ReferenceHead(config, tensors, target_embedding(toy_target().shape))
    expected = reference.logits(reference.run(ids, reference.fuse(states)))
    assert (draft.logits(found) - expected).abs().mean() < 0.03 * expected.std()
