"""The optimizers of a draft: AdamW for all, or Muon for the matrices inside of it. Knows parameters by shape.

Sources: Loshchilov & Hutter 2019 (AdamW); Jordan et al. 2024 (Muon), with the step size of Liu et al. 2025,
section 2.2, at which both take the same learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from speculative.eagle3.training.net import DraftNet

KINDS = ("adamw", "muon")
BETAS = (0.9, 0.95)


class Optimizers:
    """One or two torch optimizers that step together at one learning rate, on fp32 masters."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self._parts = tuple(parts)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the next step."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate

    def step(self) -> None:
        """One step on the gradients that the parameters hold."""
        for part in self._parts:
            part.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """What `state_dict` returned. ValueError for another kind of optimizer's."""
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


def make_optimizer(kind: str, net: DraftNet, rate: float, decay: float) -> Optimizers:
    """muon: orthogonalised momentum for fc, attention and MLP; the head, whose rows are tokens, and the norms
    stay with AdamW."""
    fused = net.d2t.device.type == "cuda"
    if kind == "adamw":
        every = list(net.parameters())
        return Optimizers([torch.optim.AdamW(every, rate, BETAS, weight_decay=decay, fused=fused)])
    named = dict(net.named_parameters())
    inner = [p for name, p in named.items() if p.dim() == 2 and not name.startswith("lm_head")]
    others = [p for name, p in named.items() if p.dim() != 2 or name.startswith("lm_head")]
    muon = torch.optim.Muon(inner, rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return Optimizers([muon, torch.optim.AdamW(others, rate, BETAS, weight_decay=decay, fused=fused)])
