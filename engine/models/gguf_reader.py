"""Tensors of a GGUF file under our names and in our layout.

Knows quantised blocks and llama.cpp's row order of q and k; knows nothing of what the tensors are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.errors import UserError
from engine.models.blocks import unpack_q4
from engine.models.gguf_file import GgufFile, GgufTensor
from engine.models.gguf_shape import FOUR_BIT, ROPE_FACTORS, tensor_name
from engine.models.shape import ModelShape
from engine.models.weights import Q4Blocks, WeightReader

PERMUTED = ("llama",)  # architectures whose q and k rows llama.cpp stores in interleaved pairs


class GgufReader(WeightReader):
    """Dequantises one tensor at a time. Raises UserError for a truncated file or a type nobody can read."""

    def __init__(self, file: GgufFile, shape: ModelShape) -> None:
        file.check_complete()
        self.where, self.files = str(file.path), (file.path,)
        self._file, self._shape = file, shape
        self._tensors = {
            tensor_name(name): tensor for name, tensor in file.tensors.items() if name != ROPE_FACTORS
        }
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        values = torch.from_numpy(_dequantised(self._file, tensor))
        return self._rows_in_order(name, values)

    def q4(self, name: str) -> Q4Blocks | None:
        tensor = self._tensors[name]
        if tensor.kind not in FOUR_BIT:
            return None
        found = unpack_q4(self._file.data(tensor), tensor.kind)
        parts = (found.codes, found.scale, found.minimum)
        return Q4Blocks(*(self._rows_in_order(name, part) for part in parts))

    def _rows_in_order(self, name: str, values: Tensor) -> Tensor:
        heads = {"q_proj": self._shape.num_heads, "k_proj": self._shape.num_kv_heads}
        part = name.split(".")[-2]
        if self._shape.architecture not in PERMUTED or part not in heads:
            return values
        return unpermute(values, heads[part])


def unpermute(values: Tensor, heads: int) -> Tensor:
    """Rows [heads * D, ...] from interleaved pairs (llama.cpp's rotation) to two halves (ours)."""
    rows, rest = values.shape[0], values.shape[1:]
    return values.view(heads, rows // heads // 2, 2, *rest).transpose(1, 2).reshape(rows, *rest)


def _dequantised(file: GgufFile, tensor: GgufTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """fp32 values in memory of their own (the file's map is read-only)."""
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(tensor.kind)
    data = file.data(tensor)
    if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):  # the package wants these as numbers
        source = np.float32 if kind == GGMLQuantizationType.F32 else np.float16
        return data.view(source).astype(np.float32).reshape(tensor.shape)
    try:
        values = dequantize(data, kind)
    except NotImplementedError as error:
        raise UserError(
            f"{file.path}: tensor {tensor.name} is stored as {kind.name}, which cannot be read"
        ) from error
    return np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape)
