"""Token-wise operations in plain torch: the reference on every device, and the CPU production path.

Knows nothing of attention; keeps only the rotation rows of the batch at hand, gathered once per pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.model_ops import ModelOps
from engine.batch import ForwardBatch, LayerKV
from engine.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")


class TorchOps(ModelOps):
    """fp32 results equal Hugging Face's Llama modules to the bit."""

    def __init__(self) -> None:
        self._batch: ForwardBatch | None = None
        self._table: Tensor | None = None
        self._rows: tuple[Tensor, Tensor] | None = None

    def new_pass(self) -> None:
        """Forget the rotation rows: the tensors of a batch may have been rewritten in place since."""
        self._batch = self._table = self._rows = None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        # The weight comes after the cast back to x.dtype; torch's own weight argument multiplies before it.
        return torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps).mul_(weight)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x.add_(residual)
        return self.rms_norm(total, weight, eps), total

    def rope_store(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        rows = self._rotation(cos, sin, q.dtype, batch)
        both = _adjoining(q, k)
        if both is None:
            q, k = _rotate(q, *rows), _rotate(k, *rows)
        else:
            turned = _rotate(both, *rows)
            q, k = turned[:, : q.shape[1]], turned[:, q.shape[1] :]
        kv.k.index_copy_(0, batch.slots, k)
        kv.v.index_copy_(0, batch.slots, v)
        return q, k

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)

    def _rotation(
        self, cos: Tensor, sin: Tensor, dtype: torch.dtype, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """cos and signed sin, each [T, 1, D] in `dtype`; the sign of rotate_half is folded into sin."""
        if self._rows is None or self._batch is not batch or self._table is not cos:
            half = cos.shape[-1] // 2
            cos_rows = cos.index_select(0, batch.positions).to(dtype)
            sin_rows = sin.index_select(0, batch.positions).to(dtype)
            sin_rows[:, :half].neg_()
            self._batch, self._table = batch, cos
            self._rows = cos_rows.unsqueeze(1), sin_rows.unsqueeze(1)
        return self._rows


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    return (x * cos).add_(x.roll(x.shape[-1] // 2, -1).mul_(signed_sin))


def _adjoining(q: Tensor, k: Tensor) -> Tensor | None:
    """q and k as one [T, Hq + Hkv, D] view when k follows q in each row of a fused projection, else None."""
    if q.stride() != k.stride() or q.storage_offset() + q.shape[1] * q.shape[2] != k.storage_offset():
        return None
    if q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr():
        return None
    return q.as_strided((q.shape[0], q.shape[1] + k.shape[1], q.shape[2]), q.stride())
