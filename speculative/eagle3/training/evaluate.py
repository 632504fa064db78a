"""How many tokens a step a greedy chain of drafts would emit, measured on answers that the target has given.

Knows the draft and the frozen target; runs no engine. Legend: S drafts in the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculative.eagle3.training.batch import make_batch
from speculative.eagle3.training.data import TextStore
from speculative.eagle3.training.net import DraftNet
from speculative.eagle3.training.target import Target
from speculative.eagle3.training.unroll import look, unrolled


@dataclass(frozen=True)
class Acceptance:
    """accept_length: tokens emitted by verify steps over their number, runs cut at the answer's end.
    positions: share of steps that accept the draft at each position. steps: their number. answers: texts."""

    accept_length: float
    positions: tuple[float, ...]
    steps: int
    answers: int


@torch.no_grad()
def accepted_runs(
    net: DraftNet, target: Target, store: TextStore, drafts: int, allowed: Tensor, tokens: int
) -> list[NDArray[np.int64]]:
    """For each sequence, drafts accepted by a step that starts at row P - 1, P, ...: int64 [n - P - 1].

    The target's answer is greedy, so a draft is accepted iff it equals the answer's token and all before it
    did; up to there the chain's own tokens are the answer's, which is why one pass over the true ids tells.
    allowed: bool [Vd], what the head may say. tokens: positions a batch.
    """
    runs: list[NDArray[np.int64]] = []
    dtype = torch.bfloat16 if target.device.type == "cuda" else torch.float32
    lengths = store.lengths
    for chosen in _groups(lengths, tokens):
        batch = make_batch(store, chosen, drafts, target.device)
        length = batch.longest
        with torch.autocast(target.device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            alive = torch.ones(len(chosen), length, dtype=torch.bool, device=target.device)
            total = torch.zeros(len(chosen), length, dtype=torch.int64, device=target.device)
            for step, states in enumerate(unrolled(net, look(target, batch), drafts)):
                said = _said(net, states, allowed).view(len(chosen), length)
                alive &= said == batch.ids[:, 2 + step : 2 + step + length]
                total += alive
        for counts, index in zip(total.cpu().numpy(), chosen, strict=True):
            rows = np.arange(store.prompts[index] - 1, lengths[index] - 2)
            runs.append(np.minimum(counts[rows], lengths[index] - 2 - rows))
    return runs


def measure(runs: Sequence[NDArray[np.int64]], drafts: int) -> Acceptance:
    """Walk each answer as serving does: a step that accepts a drafts emits a + 1 tokens and starts there."""
    accepted = np.zeros(drafts, dtype=np.int64)
    emitted = steps = 0
    for run in runs:
        row = 0
        while row < len(run):
            count = int(run[row])
            accepted[:count] += 1
            emitted += min(count + 1, len(run) - row)
            steps, row = steps + 1, row + count + 1
    share = tuple(float(x) / max(steps, 1) for x in accepted)
    return Acceptance(emitted / max(steps, 1), share, steps, len(runs))


def _said(net: DraftNet, states: Tensor, allowed: Tensor) -> Tensor:
    """Target id that the head says for each row, int64 [rows], in chunks."""
    ids = net.target_ids()
    parts = []
    for chunk in torch.split(states, 8192):
        logits = net.lm_head(chunk).float().masked_fill(~allowed, float("-inf"))
        parts.append(ids[logits.argmax(-1)])
    return torch.cat(parts)


def _groups(lengths: NDArray[np.int64], tokens: int) -> list[NDArray[np.int64]]:
    """All sequences in order, in runs whose padded size stays within `tokens`."""
    groups: list[list[int]] = [[]]
    for index, length in enumerate(lengths):
        longest = max([int(length), *(int(lengths[i]) for i in groups[-1])])
        if groups[-1] and longest * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(index)
    return [np.array(group, dtype=np.int64) for group in groups if group]
