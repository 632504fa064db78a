"""kernels/cuda/halves.cu compiled for this host, in as many versions as are wanted, and run on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from text_on_host import Built, Launch, Version, build
from torch import Tensor

from engine.kernel_choices.plans import Plan

GIVEN = "maps[0], maps[1], bias, out, n[0], n[1], n[2], n[3]"


def halved(versions: Sequence[Version], folder: Path) -> Built:
    return build("halves", 384, GIVEN, {"LINES": 128}, versions, folder)


def launch(x: Tensor, w: Tensor, bias: Tensor, out: Tensor, memory: int) -> Launch:
    """As kernels/linear_halves.py launches it; results are in out [T, N]. memory: bytes of
    a block."""
    (tokens, k), lines = x.shape, out.shape[1]
    numbers = (tokens, lines, -(-k // 128), -(-tokens // 128))
    grid = Plan("halves", 128, 64, 8).programs(tokens, lines)
    return Launch(((x, 128), (w, 128)), bias, out, numbers, grid, memory)
