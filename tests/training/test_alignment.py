"""What is trained is what serving does: overfit drafts are accepted, shifted ones not, files say the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from reference_head import ReferenceHead, chain_accepts
from safetensors.torch import load_file
from torch import Tensor
from training_parts import CPU, LAYERS, new_net, recipe, store, target, texts, train

from speculative.eagle3.training.evaluate import accepted_runs, measure
from speculative.eagle3.training.export import public_tensors, read_draft, write_draft
from speculative.eagle3.training.net import DraftNet

DRAFTS = 4


@dataclass(frozen=True)
class Shifted:
    """The tiny target whose auxiliary states arrive one position late: a trainer with an off-by-one error."""

    by: int

    def __getattr__(self, name: str) -> object:
        return getattr(target(), name)

    def states(self, ids: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        final, aux = target().states(ids, lengths)
        return final, torch.cat([part.roll(self.by, 0) for part in aux.split(list(lengths))])


def all_tokens(net: DraftNet) -> Tensor:
    return torch.ones(len(net.d2t), dtype=torch.bool)


def length_of(net: DraftNet, like: object) -> float:
    runs = accepted_runs(net, like, store(), DRAFTS, all_tokens(net), 512)  # type: ignore[arg-type]
    return measure(runs, DRAFTS).accept_length


@pytest.fixture(scope="module")
def overfit(tmp_path_factory: pytest.TempPathFactory) -> DraftNet:
    net = new_net(store())
    train(net, store(), recipe(epochs=300), tmp_path_factory.mktemp("overfit"))
    return net


def test_an_overfit_draft_is_accepted_at_every_unrolled_step(overfit: DraftNet) -> None:
    runs = accepted_runs(overfit, target(), store(), DRAFTS, all_tokens(overfit), 512)
    possible = [np.minimum(DRAFTS, len(run) - np.arange(len(run))) for run in runs]
    assert sum(run.sum() for run in runs) > 0.96 * sum(most.sum() for most in possible)
    assert measure(runs, DRAFTS).accept_length > 4.4  # of at most 5, less what the answers' ends cut


def test_states_that_arrive_one_position_late_are_noticed(overfit: DraftNet) -> None:
    assert length_of(overfit, Shifted(1)) < 0.7 * length_of(overfit, target())
    assert length_of(overfit, Shifted(-1)) < 0.7 * length_of(overfit, target())


def test_acceptance_equals_that_of_drafting_token_by_token(overfit: DraftNet, tmp_path: Path) -> None:
    """Half-trained, so that some drafts are rejected; the oracle reads the written files."""
    net = new_net(store())
    train(net, store(), recipe(epochs=70), tmp_path)
    write_draft(tmp_path / "draft", net, all_tokens(net), LAYERS, "float32")
    tensors = load_file(tmp_path / "draft/model.safetensors")
    config = json.loads((tmp_path / "draft/config.json").read_text())
    embeds = target().embed(torch.arange(target().shape.vocab_size)).double()
    runs = accepted_runs(net, target(), store(), DRAFTS, all_tokens(net), 300)
    seen = set()
    for run, (ids, prompt) in zip(runs, texts(), strict=True):
        _, aux = target().states(torch.tensor(ids), [len(ids)])
        expected = chain_accepts(ReferenceHead(tensors, config), embeds, aux, list(ids), prompt, DRAFTS)
        walked, row = [], 0
        while row < len(run):
            walked.append(int(run[row]))
            row += walked[-1] + 1
        assert walked == expected
        seen |= set(walked)
    assert len(seen) > 2, "the draft has to be neither perfect nor useless for this to say something"


def test_walk_counts_tokens_and_steps() -> None:
    """Runs by hand: a step that starts at row r accepts run[r] drafts and emits one more."""
    found = measure([np.array([2, 0, 0, 1, 0]), np.array([0, 0])], 4)
    # first: rows 0 (2 accepted), 3 (1 accepted): 3 + 2 tokens; second: two steps of one token
    assert found.steps == 4
    assert found.accept_length == pytest.approx(7 / 4)
    assert found.positions == (0.5, 0.25, 0.0, 0.0)


def test_written_files_hold_the_public_layout_and_load_back(overfit: DraftNet, tmp_path: Path) -> None:
    keep = all_tokens(overfit)
    keep[::3] = False
    write_draft(tmp_path, overfit, keep, LAYERS, "bfloat16")
    tensors = load_file(tmp_path / "model.safetensors")
    ids = overfit.target_ids()[keep]
    assert torch.equal(torch.arange(len(ids)) + tensors["d2t"], ids)
    assert tensors["t2d"].nonzero().flatten().tolist() == ids.tolist()
    assert {t.dtype for n, t in tensors.items() if n.endswith("weight")} == {torch.bfloat16}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [layer - 1 for layer in LAYERS]
    again = public_tensors(read_draft(tmp_path, CPU), torch.ones(len(ids), dtype=torch.bool), torch.bfloat16)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


def test_channel_scales_are_folded_into_fc(overfit: DraftNet) -> None:
    aux = torch.randn(5, overfit.shape.aux)
    folded = public_tensors(overfit, all_tokens(overfit), torch.float32)["fc.weight"]
    assert float((overfit.aux_scale - 1).abs().max()) > 0.1
    torch.testing.assert_close(aux @ folded.T, overfit.fuse(aux), rtol=1e-4, atol=1e-5)
