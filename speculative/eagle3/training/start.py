"""How a draft begins: in the target's own residual basis, with the target's last norm and head.

Knows the target through its contract and a little text; trains nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from speculative.eagle3.training.batch import make_batch
from speculative.eagle3.training.data import TextStore
from speculative.eagle3.training.net import DraftNet
from speculative.eagle3.training.target import Target

SAMPLE = 64  # sequences that the channel scales are measured on


@torch.no_grad()
def begin(net: DraftNet, target: Target, store: TextStore, seed: int) -> None:
    """Set the channel scales, and start from the target: `fc` passes the last auxiliary state on, scaled to
    a root mean square of 1; norm and head are the target's.

    The scale matters: a late residual stream may be twenty times as large as what a new layer adds to it, and
    the last norm does not care about it.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        if parameter.dim() == 2:
            drawn = torch.randn(parameter.shape, generator=generator) * parameter.shape[1] ** -0.5
            parameter.copy_(drawn.to(parameter.device))
    for layer in (net.midlayer.self_attn.o_proj, net.midlayer.mlp.down_proj):
        layer.weight.mul_(0.5)
    net.aux_scale.copy_(_scales(target, store))
    hidden = target.shape.hidden_size
    net.fc.weight.mul_(0.1)
    last = net.aux_scale[-hidden:]
    net.fc.weight[:, -hidden:] += torch.diag(last / last.square().mean().sqrt())
    net.norm.weight.copy_(target.norm.float())
    head = target.logits(torch.eye(hidden, dtype=target.dtype, device=target.device))
    net.lm_head.weight.copy_(head.T[net.target_ids()])


def _scales(target: Target, store: TextStore) -> Tensor:
    """Root mean square of every auxiliary channel over what the target said, fp32 [A]."""
    chosen = np.arange(min(SAMPLE, len(store)))
    batch = make_batch(store, chosen, 1, target.device)
    _, aux = target.states(batch.ragged, batch.lengths)
    said = aux.index_select(0, batch.teachers).float()
    return said.pow(2).mean(0).sqrt().clamp_min(1e-3)
