"""kernels/cuda/pair.cu compiled for this host, in as many versions as are wanted, and run on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from text_on_host import Built, Launch, Version, build
from torch import Tensor

GIVEN = "maps[0], maps[1], bias, out, n[0], n[1], n[2]"


def pairs(versions: Sequence[Version], folder: Path) -> Built:
    return build("pair", 256, GIVEN, {"LINES": 224}, versions, folder)


def launch(
    x: Tensor, w: Tensor, bias: Tensor, out: Tensor, memory: int, *, early: bool = True, last: bool = False
) -> Launch:
    """As kernels/linear_pair.py launches it; results are in out [T, F]. memory: bytes of a block; last: x is
    written by a kernel in front that ends when all else waits."""
    (tokens, k), lines = x.shape, out.shape[1]
    numbers = (tokens, lines, -(-k // 64))
    grid = -(-lines // 224) * 2
    return Launch(((x, 128), (w, 224)), bias, out, numbers, grid, memory, (x,) if early else (), last)


def gated(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """In bfloat16, rounded where separate kernels store values."""
    y = x.double() @ w.double().T + (0 if bias is None else bias.double())
    gate, up = y.bfloat16().float().chunk(2, -1)
    return ((gate / (1 + torch.exp(-gate))).bfloat16().float() * up).bfloat16()
