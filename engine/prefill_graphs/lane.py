"""The static memory of prefill passes that follow each other: what a captured pass reads and returns.

Knows shapes and nothing of captures. Legend: T tokens of a pass, N those of the largest captured size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import ForwardBatch, Mode, SeqLens

HIDDEN, AUX = "hidden", "aux"  # names of what passes return


class LaneMemory:
    """Inputs int64 [N]: token ids, positions, slots. Past a pass's own tokens they are zero: id 0 at position
    0, whose KV goes to the padding page."""

    def __init__(self, largest: int, device: torch.device) -> None:
        stride = -(-largest // 2) * 2  # of 8 bytes: kernels are compiled anew for pointers off 16
        self._inputs = torch.zeros(3, stride, dtype=torch.int64, device=device)
        self._kept: dict[str, Tensor] = {}
        self._largest = largest

    def load(self, batch: ForwardBatch, size: int) -> None:
        """Bring the tokens of a pass in, padded to `size`."""
        tokens = batch.input_ids.shape[0]
        for static, given in zip(self._inputs, (batch.input_ids, batch.positions, batch.slots), strict=True):
            static[:tokens].copy_(given)
        self._inputs[:, tokens:size].zero_()

    def clear(self, size: int) -> None:
        """Only padding in a pass of `size`, so that nothing is written but the padding page."""
        self._inputs[:, :size].zero_()

    def padded(self, size: int, page_size: int) -> ForwardBatch:
        """A pass over the first `size` tokens; a new object each time, since operations may keep what they
        computed for a batch. Only the token-wise fields mean anything."""
        ids, positions, slots = (static[:size] for static in self._inputs)
        zeros = ids.new_zeros(2, dtype=torch.int32)
        return ForwardBatch(
            mode=Mode.EXTEND,
            rows=ids.new_zeros(1),
            input_ids=ids,
            positions=positions,
            slots=slots,
            seq_lens=SeqLens(zeros[:1], (0,)),
            query_start=zeros,
            query_lens=(size,),
            page_table=zeros[:1].unsqueeze(0),
            page_size=page_size,
        )

    def like(self, name: str, result: Tensor) -> Tensor:
        """The place [N, ...] for results of this form [T, ...]."""
        return self.buffer(name, tuple(result.shape[1:]), result)

    def buffer(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Zeros [N, *shape] of the dtype of `like`, made when first asked for."""
        if name not in self._kept:
            self._kept[name] = torch.zeros((self._largest, *shape), dtype=like.dtype, device=like.device)
        return self._kept[name]

    def nbytes(self) -> int:
        """Bytes held so far."""
        return self._inputs.nbytes + sum(kept.nbytes for kept in self._kept.values())
