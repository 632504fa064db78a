"""Training-time test: the draft run several steps ahead on its own hidden states, all rows at once.

Knows the alignment; not the loss, nor what is done with the states.
Legend: B sequences, L positions, H hidden, A auxiliary width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from speculative.eagle3.training.batch import TextBatch
from speculative.eagle3.training.net import DraftNet, Memory
from speculative.eagle3.training.target import Target


@dataclass(frozen=True)
class Seen:
    """What the frozen target says of a batch. final: [T, H] ragged; aux: [B, L, A] padded with zeros; embeds:
    [B, L + unroll + 1, H]."""

    final: Tensor
    aux: Tensor
    embeds: Tensor


@torch.no_grad()
def look(target: Target, batch: TextBatch) -> Seen:
    """One pass of the target over the whole batch."""
    final, aux = target.states(batch.ragged, batch.lengths)
    size = len(batch.lengths) * batch.longest
    padded = aux.new_zeros((size, aux.shape[1])).index_copy_(0, batch.place, aux)
    return Seen(final, padded.view(len(batch.lengths), batch.longest, -1), target.embed(batch.ids))


def unrolled(net: DraftNet, seen: Seen, steps: int) -> Iterator[Tensor]:
    """The draft's states [B * L, H] after the last norm, step by step.

    Step k, row t: embedding of token t + 1 + k beside the target's fused state of position t (k = 0) or the
    draft's own of step k - 1; ids are the true ones at every step, hidden states are not.
    """
    length = seen.aux.shape[1]
    hidden, memory = net.fuse(seen.aux), Memory()
    for step in range(steps):
        hidden = net.step(seen.embeds[:, 1 + step : 1 + step + length], hidden, step, memory)
        yield net.norm(hidden).flatten(0, 1)
