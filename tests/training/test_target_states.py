"""States of the target's layers are those of the engine's own passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines import make
from training_parts import LAYERS, engine, texts

from engine.errors import UserError


def test_states_equal_the_engine_s_own() -> None:
    """Ragged sequences in one pass: the final state gives the engine's logits, the last aux state too."""
    states = engine().target_states(LAYERS)
    chosen = [ids for ids, _ in texts()[:3]]
    final, aux = states.states(torch.tensor([i for ids in chosen for i in ids]), [len(ids) for ids in chosen])
    ends = np.cumsum([len(ids) for ids in chosen]) - 1
    for end, ids in zip(ends, chosen, strict=True):
        expected = engine().next_token_logits(ids)
        torch.testing.assert_close(states.logits(final[end : end + 1])[0], expected, rtol=1e-4, atol=1e-4)
        last = aux[end, -64:]  # the output of the last layer: the final norm makes the final state of it
        normed = last / (last.square().mean() + states.shape.rms_eps).sqrt() * states.norm
        torch.testing.assert_close(normed, final[end], rtol=1e-4, atol=1e-4)


def test_a_model_without_layer_states_is_refused() -> None:
    with (
        make("model=fake", "threads=1") as llm,
        pytest.raises(UserError, match="FakeModel shows no hidden states of its layers"),
    ):
        llm.target_states((1,))
