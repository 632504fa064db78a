"""What is no checkpoint of a draft, or one of another target, is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_layouts import LAYOUTS, Tensors, renamed, without
from eagle3_cases import CONFIG, HIDDEN, tensors_of, toy_target, write
from torch import Tensor

from engine.errors import UserError
from speculative.eagle3.checkpoint import load_draft


def plain_eagle(tensors: Tensors) -> Tensors:
    kept = without(tensors, "d2t", "t2d", "norm.weight", "midlayer.hidden_norm.weight")
    found = renamed(kept, layer="layers.0.")
    found["fc.weight"] = torch.zeros(HIDDEN, 2 * HIDDEN)
    for part, rows in (("q", 64), ("k", 32), ("v", 32)):
        found[f"layers.0.self_attn.{part}_proj.weight"] = torch.zeros(rows, HIDDEN)
    return found


def first_ids(tensors: Tensors) -> Tensors:
    """d2t that holds target ids instead of offsets."""
    return {**tensors, "d2t": tensors["d2t"] + torch.arange(48)}


def changed(name: str, value: Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: value}


def dropped(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: without(tensors, *names)


REFUSED: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "plain-eagle": (plain_eagle, r"is an EAGLE \(1 or 2\) head.*\[64, 128\]"),
    "missing": (
        dropped("midlayer.hidden_norm.weight", "fc.weight"),
        r"missing: fc.weight, midlayer.hidden_norm.weight",
    ),
    "no-head": (dropped("lm_head.weight"), r"missing: lm_head.weight"),
    "extra": (changed("midlayer.self_attn.q_norm.weight", torch.ones(16)), r"not of .*: .*q_norm.weight"),
    "unasked-bias": (changed("fc.bias", torch.ones(HIDDEN)), r"not of .*: fc.bias"),
    "unasked-norm": (changed("input_norm.weight", torch.ones(192)), r"not of .*: input_norm.weight"),
    "mis-shaped": (
        changed("midlayer.mlp.up_proj.weight", torch.zeros(95, HIDDEN)),
        r"of the wrong shape: midlayer.mlp.up_proj.weight \[95, 64\] instead of \[96, 64\]",
    ),
    "two-states": (
        changed("fc.weight", torch.zeros(HIDDEN, 128)),
        r"fc.weight \[64, 128\] instead of \[64, 192\]",
    ),
    "head-of-another-size": (
        changed("lm_head.weight", torch.zeros(40, HIDDEN)),
        r"lm_head.weight \[40, 64\] instead of \[48, 64\]",
    ),
    "twice": (changed("layers.0.hidden_norm.weight", torch.ones(HIDDEN)), r"the same tensor twice"),
    "no-d2t": (dropped("d2t"), r"no d2t, yet its head knows 48 of the target's 96 tokens"),
    "zero-d2t": (changed("d2t", torch.zeros(48, dtype=torch.int64)), r"d2t is all zero"),
    "not-ascending": (
        lambda t: {**without(t, "t2d"), "d2t": t["d2t"].flip(0)}, r"d2t does not ascend.*offsets"
    ),
    "ids-for-offsets": (first_ids, r"leads to the target ids 1\.\.142; the target has 0\.\.95"),
    "negative": (changed("d2t", torch.full((48,), -1)), r"leads to the target ids -1\.\.46"),
    "float-d2t": (changed("d2t", torch.ones(48)), r"stored as torch.float32, it has to hold integers"),
    "short-d2t": (changed("d2t", torch.ones(47, dtype=torch.int64)), r"d2t \[47\] instead of \[48\]"),
    "t2d-of-other-tokens": (
        changed("t2d", torch.arange(96) < 48), r"t2d marks 48 tokens, d2t names 48.*not the same"
    ),
    "t2d-too-few": (changed("t2d", torch.arange(96) < 9), r"t2d marks 9 tokens, d2t names 48"),
    "whole-numbers": (
        changed("norm.weight", torch.ones(HIDDEN, dtype=torch.int64)), r"norm.weight is stored as torch.int64"
    ),
    "diverged": (
        changed("fc.weight", torch.full((HIDDEN, 3 * HIDDEN), float("nan"))), r"fc.weight holds .*no finite"
    ),
    "one-infinite-value": (
        changed("norm.weight", torch.ones(HIDDEN).index_fill(0, torch.tensor([5]), float("-inf"))),
        r"norm.weight holds .*no finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("layout", ["midlayer", "bin"])
def test_refused_with_a_sentence(case: str, layout: str, tmp_path: Path) -> None:
    change, match = REFUSED[case]
    folder = LAYOUTS[layout](tmp_path / "draft", CONFIG, change(tensors_of(CONFIG)))
    with pytest.raises(UserError, match=match) as caught:
        load_draft(folder, toy_target())
    assert str(tmp_path) in str(caught.value), "the message says which checkpoint"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"hidden_size": 32}, r"another target.*states of size 64, not 32"),
        ({"vocab_size": 97}, r"another target.*a vocabulary of 96, not 97"),
        ({"num_layers": 8}, r"another target.*output of layer 8, but toy has 8 layers"),
    ],
)
def test_a_draft_of_another_target(changes: dict[str, int], match: str, tmp_path: Path) -> None:
    folder = write(tmp_path, CONFIG, tensors_of(CONFIG))
    with pytest.raises(UserError, match=match):
        load_draft(folder, toy_target(**changes))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist; give a folder with config.json"):
        load_draft(tmp_path / "nowhere", toy_target())
    with pytest.raises(UserError, match=r"holds neither model.safetensors"):
        load_draft(tmp_path, toy_target())
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"no weight file of a draft"):
        load_draft(tmp_path / "notes.txt", toy_target())
    folder = write(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match=r"config.json cannot be read"):
        load_draft(folder, toy_target())
