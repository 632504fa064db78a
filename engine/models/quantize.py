"""Makes 4-bit blocks of a dense matrix. Knows the form of `Q4Blocks`, nothing of the layer it is for."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.weights import GROUP, Q4Blocks

# Fractions of a group's range that are tried: giving up the outermost values makes the steps finer.
_RANGES = (1.0, 0.95, 0.9, 0.85, 0.8)
_ROWS = 1024  # at a time, so that the temporaries stay small


def quantise_q4(matrix: Tensor) -> Q4Blocks:
    """[N, K], K a multiple of 32 -> blocks whose values lie near it in the least-squares sense.

    Per group of 32: codes over several ranges, each with scale and minimum refitted to its codes by linear
    regression, and the best kept. Scales are bfloat16 values, which is what `Int4Linear` rounds them to.
    """
    parts = [_quantise(rows.float().view(len(rows), -1, GROUP)) for rows in torch.split(matrix, _ROWS)]
    codes, scale, minimum = (torch.cat(part) for part in zip(*parts, strict=True))
    return Q4Blocks(codes.view(matrix.shape), scale, minimum)


def _quantise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x fp32 [N, K / 32, 32] -> codes uint8 as x, scale and minimum fp32 [N, K / 32]."""
    middle = (x.amax(2) + x.amin(2)) / 2
    half = (x.amax(2) - x.amin(2)) / 2
    best = _fit(x, middle - half, half * 2 / 15)
    error = _error(x, *best)
    for part in _RANGES[1:]:
        found = _fit(x, middle - part * half, part * half * 2 / 15)
        its = _error(x, *found)
        better = its < error
        error = torch.where(better, its, error)
        spread = better.unsqueeze(2)
        best = (
            torch.where(spread, found[0], best[0]),
            torch.where(better, found[1], best[1]),
            torch.where(better, found[2], best[2]),
        )
    codes, scale, minimum = best
    return codes.to(torch.uint8), scale, minimum


def _fit(x: Tensor, minimum: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes under a scale, then the scale and minimum that suit these codes best."""
    codes = _codes(x, minimum, scale)
    mean_x, mean_code = x.mean(2), codes.mean(2)
    off = codes - mean_code.unsqueeze(2)
    spread = off.square().sum(2)
    slope = (off * x).sum(2) / spread.clamp(min=1e-12)
    slope = torch.where(spread > 0, slope, scale).to(torch.bfloat16).float()
    return codes, slope, mean_x - slope * mean_code


def _codes(x: Tensor, minimum: Tensor, scale: Tensor) -> Tensor:
    """Whole numbers 0..15 as fp32; a group of equal values gets zeros."""
    step = torch.where(scale > 0, scale, torch.ones_like(scale))
    return ((x - minimum.unsqueeze(2)) / step.unsqueeze(2)).round_().clamp_(0, 15)


def _error(x: Tensor, codes: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """Sum of squares per group."""
    return (codes * scale.unsqueeze(2) + minimum.unsqueeze(2) - x).square_().sum(2)
