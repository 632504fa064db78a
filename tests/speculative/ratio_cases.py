"""Cases for the ratio test: random sampled chains, and a toy target whose runs have exact odds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from engine.batch import ABSENT, DraftTree
from speculative.accept import Accepted
from speculative.tree import chain

VOCAB = 8


def probabilities(shape: tuple[int, ...], gen: torch.Generator, zeros: float = 0.3) -> Tensor:
    """fp32, normalised; a share of them zero, as filters leave them."""
    weights = torch.rand(shape, generator=gen).pow(3)
    weights = torch.where(torch.rand(shape, generator=gen) < zeros, 0.0, weights)
    weights[..., 0] += 0.01  # something is always possible
    return weights / weights.sum(-1, keepdim=True)


def coins(batch: int, width: int, gen: torch.Generator) -> tuple[Tensor, Tensor]:
    accept, draw = (torch.rand(batch, width, generator=gen, dtype=torch.float64) for _ in range(2))
    return accept, draw


def case(batch: int, width: int, vocab: int, seed: int) -> tuple[DraftTree, Tensor, Tensor, Tensor]:
    """Chains drawn from q (now and then a draft that q excludes), cut at random: accept_ratio's arguments."""
    gen = torch.Generator().manual_seed(seed)
    p = probabilities((batch, width, vocab), gen)
    near = 0.7 * p[:, :-1] + 0.3 * probabilities((batch, width - 1, vocab), gen)  # accepted often enough
    q = torch.where(torch.rand(batch, width - 1, 1, generator=gen) < 0.2, p[:, :-1], near)
    drawn = (
        q.reshape(-1, vocab).multinomial(1, generator=gen).view(batch, width - 1) if q.numel() else q[..., 0]
    )
    strange = torch.rand(batch, width - 1, generator=gen) < 0.05
    tokens = torch.where(strange, torch.randint(0, vocab, drawn.shape, generator=gen), drawn.long())
    tree = chain(torch.cat((torch.zeros(batch, 1), tokens), 1).int())
    length = torch.randint(0, 2 * width, (batch, 1), generator=gen)
    parent = torch.where(torch.arange(width) > length, ABSENT, tree.parent).int()
    return DraftTree(tree.tokens, parent, probs=q), p, *coins(batch, width, gen)


def moved(tree: DraftTree, device: str) -> DraftTree:
    assert tree.probs is not None
    return DraftTree(tree.tokens.to(device), tree.parent.to(device), probs=tree.probs.to(device))


def tables(temperature: float = 1.0, cut: float = 0.0) -> tuple[Tensor, Tensor]:
    """fp32 [V, V]: next-token probabilities after a token, of the target (small ones cut away, as filters do)
    and of the draft model."""
    gen = torch.Generator().manual_seed(7)
    logits = torch.randn(2, VOCAB, VOCAB, generator=gen) * 1.5
    p, q = (logits[0] / temperature).softmax(-1), (logits[0] * 0.6 + logits[1] * 0.5).softmax(-1)
    p = torch.where(p < cut, 0.0, p)
    return p / p.sum(-1, keepdim=True), q


Rule = Callable[[DraftTree, Tensor, Tensor, Tensor], Accepted]


def joint_counts(rule: Rule, p: Tensor, q: Tensor, rows: int, device: str) -> np.ndarray:
    """How often each run of three tokens came up after token 0: two drafts, then plain draws."""
    gen = torch.Generator(device).manual_seed(11)
    p, q = p.to(device), q.to(device)

    def draw(table: Tensor, last: Tensor) -> Tensor:
        return table[last].multinomial(1, generator=gen).squeeze(1)

    root = torch.zeros(rows, dtype=torch.int64, device=device)
    first = draw(q, root)
    tokens = torch.stack((root, first, draw(q, first)), 1)
    tree = replace(chain(tokens.int()), probs=q[tokens[:, :2]])
    flips = [torch.rand(rows, 3, generator=gen, dtype=torch.float64, device=device) for _ in range(2)]
    taken = rule(tree, p[tokens], *flips)
    out = taken.emitted.long()
    for j in (1, 2):
        out[:, j] = torch.where(taken.n_accepted >= j, out[:, j], draw(p, out[:, j - 1]))
    index = (out[:, 0] * VOCAB + out[:, 1]) * VOCAB + out[:, 2]
    return np.bincount(index.cpu().numpy(), minlength=VOCAB**3).astype(float)


def p_value(counts: np.ndarray, p: Tensor) -> float:
    share = p.double()
    joint = (share[0].view(-1, 1, 1) * share.unsqueeze(-1) * share).reshape(-1).numpy() * counts.sum()
    assert (counts[joint == 0] == 0).all()
    big = joint >= 5
    seen, meant = (np.append(x[big], x[~big].sum()) for x in (counts, joint))
    keep = meant > 0
    return float(stats.chisquare(seen[keep], meant[keep] * seen.sum() / meant.sum()).pvalue)
