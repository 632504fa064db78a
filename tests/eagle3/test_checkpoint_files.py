"""Published checkpoints load unchanged in every layout, with the parts they leave to the target."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from checkpoint_layouts import LAYOUTS, expected, logits_of, pickled, without
from eagle3_cases import CONFIG, HIDDEN, VOCAB, matrix, target_embedding, tensors_of, toy_target, write

from engine.errors import UserError
from speculative.base import DraftTarget
from speculative.eagle3.checkpoint import load_draft


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_logits(layout: str, tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    plain = logits_of(load_draft(write(tmp_path / "plain", CONFIG, tensors), toy_target()))
    found = logits_of(load_draft(LAYOUTS[layout](tmp_path / "other", CONFIG, tensors), toy_target()))
    assert torch.equal(found, plain)
    torch.testing.assert_close(found, expected(CONFIG, tensors), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("layout", ["midlayer", "bin"])
def test_stored_in_bfloat16(layout: str, tmp_path: Path) -> None:
    tensors = {n: t.bfloat16() if t.is_floating_point() else t for n, t in tensors_of(CONFIG).items()}
    found = logits_of(load_draft(LAYOUTS[layout](tmp_path / "x", CONFIG, tensors), toy_target()))
    torch.testing.assert_close(found, expected(CONFIG, tensors), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_file_may_be_given(name: str, tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    make = write if name == "model.safetensors" else pickled
    folder = make(tmp_path / "x", CONFIG, tensors)
    assert torch.equal(
        logits_of(load_draft(str(folder / name), toy_target())), logits_of(load_draft(folder, toy_target()))
    )


def test_no_d2t_with_equal_vocabularies(tmp_path: Path) -> None:
    config = {**CONFIG, "draft_vocab_size": None}
    draft = load_draft(write(tmp_path, config, tensors_of(config)), toy_target())
    assert draft.target_ids(torch.arange(VOCAB)).tolist() == list(range(VOCAB))
    zero = {**tensors_of(config), "d2t": torch.zeros(VOCAB, dtype=torch.int64)}
    draft = load_draft(write(tmp_path, config, zero), toy_target())
    assert draft.target_ids(torch.arange(VOCAB)).tolist() == list(range(VOCAB))


@pytest.mark.parametrize("target", [toy_target(), toy_target(tied=True)], ids=["untied", "tied"])
def test_no_head_of_its_own_uses_the_targets(target: DraftTarget, tmp_path: Path) -> None:
    config = {**CONFIG, "draft_vocab_size": None}
    draft = load_draft(write(tmp_path, config, without(tensors_of(config), "lm_head.weight")), target)
    state = matrix("state", 3, HIDDEN)
    weight = tensors_of(config)["norm.weight"]
    normed = torch.nn.functional.rms_norm(state, (HIDDEN,), weight, 1e-5)
    torch.testing.assert_close(draft.logits(state), target.logits(normed), atol=1e-5, rtol=1e-5)
    assert draft.nbytes() < load_draft(write(tmp_path, config, tensors_of(config)), target).nbytes()


def test_an_embedding_that_the_target_has_is_not_kept_twice(tmp_path: Path) -> None:
    tensors = tensors_of(CONFIG)
    bytes_of = {}
    for name, embed in (
        ("target's", target_embedding(toy_target().shape)),
        ("own", matrix("own", VOCAB, HIDDEN)),
    ):
        held = write(tmp_path / name, CONFIG, {**tensors, "embed_tokens.weight": embed})
        bytes_of[name] = load_draft(held, toy_target()).nbytes()
    assert bytes_of["own"] - bytes_of["target's"] == VOCAB * HIDDEN * 4


def test_an_embedding_narrower_than_the_target(tmp_path: Path) -> None:
    """hidden 32 over a target of 64: fc changes the width, and the embedding has to be the draft's own."""
    config = {**CONFIG, "hidden_size": 32, "head_dim": 16, "target_hidden_size": HIDDEN}
    tensors = tensors_of(config)
    with pytest.raises(UserError, match=r"no embed_tokens.weight.*32 differs from the 64 of toy"):
        load_draft(write(tmp_path / "a", config, tensors), toy_target())
    tensors["embed_tokens.weight"] = matrix("own", VOCAB, 32)
    found = logits_of(load_draft(write(tmp_path / "b", config, tensors), toy_target()))
    torch.testing.assert_close(found, expected(config, tensors), atol=2e-5, rtol=2e-5)


def test_guessed_layers_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_draft(LAYOUTS["ids-absent"](tmp_path / "x", CONFIG, tensors_of(CONFIG)), toy_target())
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "outputs of layers 1, 5, 8" in warnings[0]
