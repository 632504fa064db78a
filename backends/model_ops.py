"""The contract of token-wise operations: norms, rotation, SwiGLU, products, and stages made of them.

Part of the attention contract (backends/base.py hands it on); importable without torch. Knows no backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from engine.batch import ForwardBatch, LayerKV
from engine.lazy import lazy_import

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from engine.models.linear import Linear
else:
    torch = lazy_import("torch")


class Head(Protocol):
    """Finds the best outputs of a matrix."""

    @property
    def dense(self) -> Linear:
        """The map onto all outputs."""

    def best(self, x: Tensor) -> Tensor:
        """x [N, H], normalised -> int64 [N]: the output with the largest score, the first of equals."""


class ModelOps(ABC):
    """The token-wise operations of a decoder layer; a backend brings the set that suits its device.

    Outputs may be new tensors or `x` written in place; callers must use the returned ones only. A `residual`
    is never written over.
    Stages of several operations are compositions of the others, unless a backend has them in one kernel.

    early: whether its kernels start while the one in front ends (kernels.launch.dependent); those of a step
    that runs on the same backend may do so too.
    """

    early: bool = False

    def rows(self, table: Tensor, index: Tensor) -> Tensor:
        """table [V, H], index int32 or int64 [N] -> its rows there, [N, H], a new tensor: an embedding."""
        return torch.nn.functional.embedding(index, table)

    def beside(self, parts: Sequence[Tensor], added: Tensor | None = None) -> Tensor:
        """n parts, [T, H] each, in one new tensor [T, n * H]; `added` [T, H] is added to the last part."""
        last = parts[-1] if added is None else parts[-1] + added
        return torch.cat((*parts[:-1], last), dim=1)

    @abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [T, H] (or [T, heads, D], normalised over the last axis) -> same shape.

        Zhang & Sennrich 2019, eq. 4. The variance is computed in fp32; the result is cast to x.dtype before
        the product with `weight`.
        """

    @abstractmethod
    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual), each [T, H]."""

    @abstractmethod
    def rope_store(
        self, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: LayerKV, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Rotate q [T, Hq, D] and k [T, Hkv, D] (half-split layout; Su et al. 2021, sec. 3.4) by
        batch.positions, write k and v to the pool at batch.slots, return the rotated (q, k).

        cos, sin: fp32 [max positions, D] tables (the two halves repeat).
        """

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2F] (gate, then up) -> [T, F]: silu(gate) * up. Shazeer 2020, SwiGLU."""

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        """x [T, in] -> [T, out], a new tensor; x stays as it is."""
        return linear(x)

    def scores(self, x: Tensor, linear: Linear) -> Tensor:
        """What `linear` gives, in its precision or, with the same values, in fp32: [T, in] -> [T, out]. Who
        computes with scores casts them; for the largest of a row there is no need to."""
        return self.linear(x, linear).float()

    def norm_linear(
        self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        """(linear(norm(x + residual)), x + residual): [T, out], [T, H]. residual None: the stream is x alone,
        which then stays as it is."""
        if residual is None:
            return self.linear(self.rms_norm(x.clone(), weight, eps), linear), x
        normed, stream = self.add_rms_norm(x, residual, weight, eps)
        return self.linear(normed, linear), stream

    def norm_gated(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, linear: Linear
    ) -> tuple[Tensor, Tensor]:
        """(silu_mul(linear(norm(x + residual))), x + residual): [T, F], [T, H]. linear: H -> 2F."""
        gate_up, stream = self.norm_linear(x, residual, weight, eps, linear)
        return self.silu_mul(gate_up), stream

    def norm_pair(
        self, table: Tensor, index: Tensor, a_weight: Tensor, b: Tensor, b_weight: Tensor, eps: float
    ) -> Tensor:
        """The norms of `rows` of a table, [V, H] by [T], and of b [T, H] side by side: [T, 2H]. b stays as it
        is."""
        a = self.rms_norm(self.rows(table, index), a_weight, eps)
        return torch.cat((a, self.rms_norm(b.clone(), b_weight, eps)), dim=1)

    def best(
        self, x: Tensor, weight: Tensor | None, eps: float, head: Head, ids: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """ids[argmax(head(norm(x)))], the first of equals: x [N, H], ids int32 [outputs] -> int32 [N].

        weight: of the norm; None: x is normalised. x stays as it is. out: where the result goes, of any
        stride; None: into a new tensor.
        """
        found = ids[head.best(self._normed(x, weight, eps))]
        return found if out is None else out.copy_(found)

    def top(
        self, x: Tensor, weight: Tensor | None, eps: float, head: Head, ids: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """The k best outputs of head(norm(x)), best first: (ids int32 [N, k], natural-log probabilities fp32
        [N, k]); operands as in `best`."""
        logits = head.dense(self._normed(x, weight, eps)).float()
        scores, index = logits.topk(k, dim=1)
        return ids[index], scores - logits.logsumexp(dim=1, keepdim=True)

    def _normed(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return x if weight is None else self.rms_norm(x.clone(), weight, eps)
