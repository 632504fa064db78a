"""Where a model builder reads tensors from: the contract of weight readers, and seeded random weights.

Knows no file format and no architecture beyond tensor names and shapes.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.names import EMBED, HEAD

GROUP = 32  # values that share one scale


@dataclass(frozen=True)
class Q4Blocks:
    """A 4-bit matrix of N rows and K columns: value = codes * scale + minimum, per group of 32 columns.

    codes: uint8 [N, K] in 0..15. scale, minimum: fp32 [N, K / 32].
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor

    def dense(self) -> Tensor:
        """fp32 [N, K]."""
        rows, columns = self.codes.shape
        grouped = self.codes.view(rows, columns // GROUP, GROUP).float()
        return (grouped * self.scale.unsqueeze(2) + self.minimum.unsqueeze(2)).view(rows, columns)


class WeightReader(ABC):
    """Tensors of one checkpoint by Hugging Face name. shapes: what it holds; files: what it reads."""

    where: str  # how messages call the checkpoint
    shapes: Mapping[str, tuple[int, ...]]
    files: tuple[Path, ...] = ()

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The tensor in a floating dtype, in memory of its own or a map that outlives it."""

    def q4(self, name: str) -> Q4Blocks | None:
        """The matrix as its stored 4-bit blocks; None when it is stored otherwise."""
        return None


class DummyWeights(WeightReader):
    """Seeded random weights of given shapes; values depend on seed, name, shape and device only.

    Matrices keep the variance of their input, so activations stay finite at any depth; the head is wide
    enough that the best token stands clear of the second.
    """

    where = "the random weights"

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], seed: int, device: str = "cpu", *, blocks: bool = False
    ) -> None:
        self.shapes = shapes
        self._seed = seed
        self._device = device
        self._blocks = blocks

    def read(self, name: str) -> Tensor:
        size = self.shapes[name]
        dtype = (
            torch.float32 if self._device == "cpu" else torch.bfloat16
        )  # half the peak where models are large
        values = torch.empty(size, dtype=dtype, device=self._device).normal_(generator=self._generator(name))
        if name.endswith("norm.weight"):
            return 1 + 0.1 * values
        return values.mul_(_spread(name, size))

    def q4(self, name: str) -> Q4Blocks | None:
        size = self.shapes[name]
        if not self._blocks or len(size) != 2 or size[1] % GROUP or name in (EMBED, HEAD):
            return None
        codes = torch.randint(0, 16, size, dtype=torch.uint8, generator=self._generator(name))
        scale = torch.full(
            (size[0], size[1] // GROUP), _spread(name, size) / 4.6
        )  # 4.6: deviation of the codes
        return Q4Blocks(codes, scale, -7.5 * scale)

    def _generator(self, name: str) -> torch.Generator:
        seed = zlib.crc32(f"{self._seed} {name}".encode())  # the CPU's generator reads 32 bits of a seed
        return torch.Generator(device=self._device).manual_seed(seed)


def _spread(name: str, size: tuple[int, ...]) -> float:
    if len(size) == 1:
        return 0.1
    return (3.0 if name in (EMBED, HEAD) else 1.0) / math.sqrt(size[-1])
