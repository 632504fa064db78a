"""Published checkpoints load unchanged in every layout; what is not one is refused with a sentence."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_cases import CONFIG, HIDDEN, VOCAB, Paged, matrix, target_embedding, tensors_of, toy_target, write
from safetensors.torch import save_file
from support.eagle3_reference import ReferenceHead
from torch import Tensor

from backends.torch_sdpa import TorchSDPA
from engine.errors import UserError
from speculative.base import DraftTarget
from speculative.eagle3.checkpoint import load_draft, open_weights
from speculative.eagle3.draft import Eagle3Draft

Tensors = dict[str, Tensor]
IDS = torch.arange(20) * 3 % VOCAB
STATES = matrix("states of the target", 20, 3 * HIDDEN)


def logits_of(draft: Eagle3Draft) -> Tensor:
    hidden = draft.fuse(STATES.to(draft.dtype))
    return draft.logits(Paged(draft, TorchSDPA, 16, 1).step([IDS], [hidden])[0])


def expected(config: dict[str, Any], tensors: Tensors) -> Tensor:
    reference = ReferenceHead(config, tensors, target_embedding(toy_target().shape))
    return reference.logits(reference.run(IDS, reference.fuse(STATES)))


def renamed(tensors: Tensors, prefix: str = "", layer: str = "midlayer.") -> Tensors:
    plain = ("d2t", "t2d", "lm_head.weight")
    found = {}
    for name, value in tensors.items():
        found[name if name in plain else prefix + name.replace("midlayer.", layer)] = value
    return found


def sharded(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    homes = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(homes.values()):
        save_file({name: tensors[name] for name in names if homes[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return folder


def pickled(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


# Each writes the same draft another way; all must give the same logits to the bit.
LAYOUTS: dict[str, Callable[[Path, dict[str, Any], Tensors], Path]] = {
    "midlayer": write,
    "layers.0": lambda f, c, t: write(f, c, renamed(t, layer="layers.0.")),
    "model-prefix": lambda f, c, t: write(f, c, renamed(t, prefix="model.", layer="layers.0.")),
    "bin": pickled,
    "sharded": sharded,
    "theta-in-rope-parameters": lambda f, c, t: write(
        f, {**without(c, "rope_theta"), "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}, t
    ),
    "ids-absent": lambda f, c, t: write(f, without(c, "eagle_config"), t),
    "ids-null": lambda f, c, t: write(
        f, {**c, "eagle_config": {"eagle_aux_hidden_state_layer_ids": None}}, t
    ),
    "draft-vocabulary-absent": lambda f, c, t: write(f, without(c, "draft_vocab_size"), t),
    "no-t2d": lambda f, c, t: write(f, c, without(t, "t2d")),
    "int32-d2t": lambda f, c, t: write(f, c, {**t, "d2t": t["d2t"].int()}),
    "embedding-of-the-target": lambda f, c, t: write(
        f, c, {**t, "embed_tokens.weight": target_embedding(toy_target().shape)}
    ),
    "buffers": lambda f, c, t: write(f, c, {**t, "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8)}),
    "speculators": lambda f, c, t: write(
        f,
        {
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": 48,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
            "transformer_layer_config": without(c, "eagle_config", "draft_vocab_size", "architectures"),
        },
        renamed(t, layer="layers.0."),
    ),
}


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


OFFSETS = torch.arange(48) + 1
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
    "ids-for-offsets": (
        lambda t: {**without(t, "t2d"), "d2t": t["d2t"].flip(0)}, r"d2t does not ascend.*offsets"
    ),
    "past-the-vocabulary": (first_ids, r"leads to the target ids 1\.\.142; the target has 0\.\.95"),
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


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [0, 5, 2000, -1000])
def test_cut_files(name: str, kept: int, tmp_path: Path) -> None:
    make = write if name == "model.safetensors" else pickled
    folder = make(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:kept])
    size = len(whole[:kept])
    with pytest.raises(UserError, match=rf"{name} .*(truncated|broken).*") as caught:
        load_draft(folder, toy_target())
    assert str(size) in str(caught.value) or "broken" in str(caught.value)


class Runs:
    """A pickle that would call something."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("the pickle ran",))


def test_a_bin_file_cannot_run_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pickled(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    torch.save({"fc.weight": Runs()}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="others may run code"):
        load_draft(folder, toy_target())
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Runs(), protocol=2))
    with pytest.raises(UserError, match="others may run code"):
        load_draft(folder, toy_target())
    assert capsys.readouterr().out == ""


def test_a_bin_file_of_something_else(tmp_path: Path) -> None:
    folder = pickled(tmp_path / "x", CONFIG, tensors_of(CONFIG))
    torch.save([torch.ones(3)], folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="no plain mapping"):
        load_draft(folder, toy_target())


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02q\x00.", b"\x80\x02h\x05.", b"\x80\x02j\x13", b"PK\x03\x04"]
)
def test_a_broken_pickle_is_refused_however_it_breaks(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"pytorch_model\.bin (is truncated|holds more)"):
        open_weights(tmp_path)


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
