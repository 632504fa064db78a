"""Linear maps over the stored form of their weights. Knows nothing of the layer it serves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.models.weights import GROUP, Q4Blocks, Q8Blocks

# Rows up to which the int4 kernel beats a dense product: its time grows with the rows, for it is a
# matrix-vector kernel at heart. Measured on two cores with 576 to 3072 outputs.
INT4_ROWS = 8
INT8_ROWS = 4  # the same for 8-bit weights, which cost twice as much


class Linear(ABC):
    """x [T, in] -> [T, out]."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x in the compute dtype -> a new tensor of the same dtype."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the weights occupy."""


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


class Int4Linear(Linear):
    """4-bit weights on the CPU with bfloat16 activations and scales.

    The kernel computes (code - 8) * scale + zero, so zero = minimum + 8 * scale. With `keep_dense` there is a
    bfloat16 copy of the same values, and passes of more than INT4_ROWS rows use that: it is faster there.
    """

    __slots__ = ("_bias", "_dense", "_packed", "_scales")

    def __init__(self, blocks: Q4Blocks, bias: Tensor | None = None, *, keep_dense: bool = False) -> None:
        self._packed, self._scales = _pack(blocks.codes, blocks.scale, blocks.minimum + 8 * blocks.scale)
        self._bias = bias
        self._dense = blocks.dense().to(torch.bfloat16) if keep_dense else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._dense is not None and x.shape[0] > INT4_ROWS:
            return functional.linear(x, self._dense, self._bias)
        y = torch._weight_int4pack_mm_for_cpu(x, self._packed, GROUP, self._scales)
        return y if self._bias is None else y.add_(self._bias)

    def nbytes(self) -> int:
        own = (self._packed, self._scales, self._bias, self._dense)
        return sum(tensor.nbytes for tensor in own if tensor is not None)


class Int8Linear(Linear):
    """8-bit weights as two 4-bit matrices side by side, over the input twice: the int4 kernel takes half the
    time of a bfloat16 product for few rows. `dense` is the same matrix in bfloat16, for more than INT8_ROWS.

    code + 128 = 16 * high + low, so value = (high - 8) * 16 * scale + (low - 8) * scale + 8 * scale.
    """

    __slots__ = ("_dense", "_packed", "_scales")

    def __init__(self, blocks: Q8Blocks, dense: Tensor) -> None:
        shifted = (blocks.codes.to(torch.int16) + 128).to(torch.uint8)
        codes = torch.cat((shifted >> 4, shifted & 15), dim=1)
        scale = torch.cat((16 * blocks.scale, blocks.scale), dim=1)
        zero = torch.cat((torch.zeros_like(blocks.scale), 8 * blocks.scale), dim=1)
        self._packed, self._scales = _pack(codes, scale, zero)
        self._dense = dense

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] > INT8_ROWS:
            return functional.linear(x, self._dense)
        return torch._weight_int4pack_mm_for_cpu(torch.cat((x, x), dim=1), self._packed, GROUP, self._scales)

    def nbytes(self) -> int:
        return self._packed.nbytes + self._scales.nbytes + self._dense.nbytes


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


def fits_int4(blocks: Q4Blocks | Q8Blocks) -> bool:
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
