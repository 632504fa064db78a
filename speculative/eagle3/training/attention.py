"""Attention of a training-time-test step: causal over the first step's keys, the own row's over later steps'.

Knows tensors only. Legend: B sequences, H heads, L positions, D head size, n later steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default
_FLASH_BACK = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
_FLASH_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_CPU_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def unrolled_attention(q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], scale: float) -> Tensor:
    """q, each of keys and values: [B, H, L, D] -> [B, H, L, D].

    Row t sees keys[0] at rows 0..t and keys[1:] at row t alone: what a chain of drafts that began at t finds
    in its cache (Li et al. 2025, EAGLE-3, section 3.2).
    """
    later = [tensor for pair in zip(keys[1:], values[1:], strict=True) for tensor in pair]
    out: Tensor = _Unrolled.apply(scale, q, keys[0], values[0], *later)  # type: ignore[no-untyped-call]
    return out


class _Unrolled(torch.autograd.Function):
    """One softmax over both kinds of keys. The causal part runs in the fused kernel, whose backward is exact
    for a part of a softmax when it is given the output and the log-sum-exp of the whole."""

    @staticmethod
    def forward(ctx: Any, scale: float, q: Tensor, k: Tensor, v: Tensor, *later: Tensor) -> Tensor:
        causal, causal_lse, extras = _flash(q, k, v, scale)
        scores = [_score(q, key, scale) for key in later[::2]]
        lse = causal_lse
        for score in scores:
            lse = torch.logaddexp(lse, score)
        out = causal.float() * (causal_lse - lse).exp().unsqueeze(-1)
        for score, value in zip(scores, later[1::2], strict=True):
            out = torch.addcmul(out, (score - lse).exp().unsqueeze(-1), value.float())
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse, *later)
        ctx.scale, ctx.extras = scale, extras
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *later = ctx.saved_tensors
        grad = grad.to(q.dtype)
        dq, dk, dv = _flash_back(grad, q, k, v, out, lse, ctx.extras, ctx.scale)
        delta = (grad.float() * out.float()).sum(-1)
        dq = dq.float()
        grads: list[Tensor] = []
        for key, value in zip(later[::2], later[1::2], strict=True):
            weight = (_score(q, key, ctx.scale) - lse).exp()
            slope = weight * ((grad.float() * value.float()).sum(-1) - delta) * ctx.scale
            dq = torch.addcmul(dq, slope.unsqueeze(-1), key.float())
            grads += [slope.unsqueeze(-1) * q.float(), weight.unsqueeze(-1) * grad.float()]
        return (None, dq.to(q.dtype), dk, dv, *(g.to(q.dtype) for g in grads))


def _score(q: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scaled products of equal rows, fp32 [B, H, L]."""
    return (q.float() * key.float()).sum(-1) * scale


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """(output, natural log-sum-exp fp32 [B, H, L], what the backward kernel wants besides)."""
    if q.device.type == "cpu":
        out, lse = _FLASH_CPU(q, k, v, 0.0, True, scale=scale)
        return out, lse.float(), ()
    out, lse, *extras = _FLASH(q, k, v, 0.0, True, False, scale=scale)
    return out, lse, tuple(extras[:6])


def _flash_back(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    extras: tuple[Any, ...],
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type == "cpu":
        found = _FLASH_CPU_BACK(grad, q, k, v, out, lse, 0.0, True, scale=scale)
    else:
        cum_q, cum_k, max_q, max_k, seed, offset = extras
        found = _FLASH_BACK(
            grad, q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, True, seed, offset, scale=scale
        )
    dq, dk, dv = found
    return dq, dk, dv
