"""The loss of one unrolled step: soft cross entropy against the target on the draft's vocabulary.

Knows rows of hidden states and of teacher probabilities; not which tokens they belong to.
Legend: n rows, N teacher rows, H hidden, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 8192  # rows whose logits exist at one time


@dataclass(frozen=True)
class Teacher:
    """probs: [N, Vd] the target's distribution renormalised on the draft vocabulary. best: int64 [N] draft id
    of the target's most likely token, -1 where the draft does not have it."""

    probs: Tensor
    best: Tensor


@torch.no_grad()
def teach(logits: Callable[[Tensor], Tensor], hidden: Tensor, ids: Tensor, dtype: torch.dtype) -> Teacher:
    """hidden [N, H] of the target, its head `logits`, ids int64 [Vd] -> the teacher of these rows."""
    probs = torch.empty(hidden.shape[0], ids.shape[0], dtype=dtype, device=hidden.device)
    best = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    for start in range(0, hidden.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        full = logits(hidden[rows])
        own = full.index_select(1, ids)
        probs[rows] = own.softmax(-1)
        value, place = own.max(-1)
        best[rows] = torch.where(value >= full.max(-1).values, place, -1)
    return Teacher(probs, best)


def step_loss(
    hidden: Tensor, head: Tensor, teacher: Teacher, rows: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(sum of the rows' cross entropies, bool [n] whether the draft's best token is the target's).

    hidden: fp32 [n, H] after the last norm. head: [Vd, H]. rows: int64 [n], each one's teacher row. Rows
    whose teacher's best token is outside the draft vocabulary count neither way. dtype: of the products.
    """
    loss, match = _HeadLoss.apply(  # type: ignore[no-untyped-call]
        hidden, head, teacher.probs, teacher.best, rows, dtype
    )
    return loss, match


class _HeadLoss(torch.autograd.Function):
    """Head and loss in one: a chunk's logits are gone once its part of the gradient is computed."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, probs: Tensor, best: Tensor, rows: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        weight = head.to(dtype)
        d_hidden = torch.empty_like(hidden, dtype=torch.float32)
        d_weight = torch.zeros_like(head, dtype=torch.float32)
        match = torch.empty(hidden.shape[0], dtype=torch.bool, device=hidden.device)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            p, b = probs[rows[part]], best[rows[part]]
            keep = (b >= 0).unsqueeze(1)
            x = hidden[part].to(dtype)
            log_q = torch.log_softmax(x @ weight.T, -1, dtype=torch.float32)
            match[part] = log_q.argmax(-1) == b
            loss -= ((p * log_q).sum(-1, keepdim=True) * keep).sum()
            slope = torch.sub(log_q.exp_(), p, out=torch.empty_like(log_q, dtype=dtype))
            d_hidden[part] = slope @ weight * keep
            d_weight += slope.T @ (x * keep)
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.mark_non_differentiable(match)
        return loss, match

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * grad, d_weight * grad, None, None, None, None
