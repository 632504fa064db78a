"""The paged KV pool: one buffer a layer for keys and one for values, addressed by slot.

Knows shapes and bytes, not which request owns a page (engine/cache does).
"""

from __future__ import annotations

import torch

from engine.batch import KVLayout, LayerKV

POISON = 1.0e4  # debug: finite, since 0 x NaN is NaN in a masked softmax, and large enough to be seen


class KVPool:
    """`pages` usable pages of `page_size` slots each, behind the padding page 0; behind them `scratch` slots
    that belong to no page. Starts at zero."""

    def __init__(
        self,
        layout: KVLayout,
        pages: int,
        page_size: int,
        device: torch.device,
        *,
        poison: bool = False,
        scratch: int = 0,
    ) -> None:
        self.layout = layout
        self.first_scratch = (pages + 1) * page_size
        self.slots = self.first_scratch + scratch
        dtype = getattr(torch, layout.dtype)
        self.layers: list[LayerKV] = []
        for group in layout.groups:
            shape = (self.slots, group.heads, group.head_dim)
            for _ in range(group.layers):
                k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
                if poison:
                    k[page_size:].fill_(POISON)
                    v[page_size:].fill_(POISON)
                self.layers.append(LayerKV(len(self.layers), k, v))

    def nbytes(self) -> int:
        return self.slots * self.layout.bytes_per_token()
