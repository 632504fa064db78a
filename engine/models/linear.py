"""Linear maps over the stored form of their weights. Knows nothing of the layer it serves."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.weights import GROUP, Q4Blocks

# Rows up to which the int4 kernel, which works in blocks of four rows, beats a packed bfloat16 product. At 8
# rows it is ahead by 8% on the two-core machine of docs/results.md, at 16 it is behind.
INT4_ROWS = 8
_TYPICAL_ROWS = 8  # for which oneDNN chooses its layout; it serves all


class Linear(ABC):
    """x [T, in] -> [T, out]."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x in the compute dtype -> a new tensor of the same dtype."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the weights occupy."""

    @property
    def plain(self) -> DenseLinear | None:
        """The map as weight and bias that a kernel may read; None where they are stored in another form."""
        return None


class DenseLinear(Linear):
    """weight [out, in], bias [out] or None, in the compute dtype."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def plain(self) -> DenseLinear:
        return self


class PackedLinear(Linear):
    """A bfloat16 matrix on the CPU in the layout that oneDNN's kernels want: the plain product rearranges the
    weights at each call, which takes longer than a product of few rows.

    Results equal `DenseLinear`'s to the bit. Not for fp32: there oneDNN sums in another order than the plain
    product, and fp32 is the reference.
    """

    __slots__ = ("_bias", "_packed", "_product")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._product(x, self._packed, self._bias, "none", [], "")
        return y

    def nbytes(self) -> int:
        return int(self._packed.nbytes) + (0 if self._bias is None else self._bias.nbytes)


def dense_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest dense map for the weight's device and dtype."""
    if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and packs_bfloat16():
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


@functools.cache
def packs_bfloat16() -> bool:
    """Whether this processor and build of torch take packed bfloat16 weights."""
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=torch.bfloat16), _TYPICAL_ROWS)
    except (RuntimeError, AttributeError):
        return False
    return True


class Int4Linear(Linear):
    """4-bit weights on the CPU with bfloat16 activations and scales.

    The kernel computes (code - 8) * scale + zero, so zero = minimum + 8 * scale. With `keep_dense` there is a
    packed bfloat16 copy of the same values, and passes of more than INT4_ROWS rows use that.
    """

    __slots__ = ("_bias", "_dense", "_packed", "_scales")

    def __init__(self, blocks: Q4Blocks, bias: Tensor | None = None, *, keep_dense: bool = False) -> None:
        self._packed, self._scales = _pack(blocks.codes, blocks.scale, blocks.minimum + 8 * blocks.scale)
        self._bias = bias
        self._dense = dense_linear(blocks.dense().to(torch.bfloat16), bias) if keep_dense else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._dense is not None and x.shape[0] > INT4_ROWS:
            return self._dense(x)
        x = x.contiguous()  # the kernel refuses every other layout, as a column of a relay's states has
        y = torch._weight_int4pack_mm_for_cpu(x, self._packed, GROUP, self._scales)
        return y if self._bias is None else y.add_(self._bias)

    def nbytes(self) -> int:
        own = self._packed.nbytes + self._scales.nbytes + (0 if self._bias is None else self._bias.nbytes)
        return own + (0 if self._dense is None else self._dense.nbytes())


def _pack(codes: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """codes uint8 [N, K], scale and zero fp32 [N, K / 32] -> what the CPU kernel takes.

    A rounded scale errs in one direction for all 32 values of a group. The zero takes up the mean of that
    error: without it int4 is 1.7 times as far from fp32 as bfloat16 is (SmolLM2), with it no farther.
    """
    rows, columns = codes.shape
    rounded = scale.to(torch.bfloat16).float()
    mean = codes.view(rows, columns // GROUP, GROUP).float().mean(dim=2) - 8
    zero = zero + (scale - rounded) * mean
    packed = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    return packed, torch.stack((rounded.t(), zero.t()), dim=2).to(torch.bfloat16).contiguous()


def fits_int4(blocks: Q4Blocks) -> bool:
    """Whether the CPU kernel takes a matrix of this size: outputs in tiles of 16, inputs in groups of 32."""
    rows, columns = blocks.codes.shape
    return rows % 16 == 0 and columns % GROUP == 0


def merge_blocks(parts: Sequence[Q4Blocks]) -> Q4Blocks:
    """Matrices over the same input, one below the other."""
    return Q4Blocks(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat([part.minimum for part in parts]),
    )
