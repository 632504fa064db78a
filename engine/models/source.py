"""Where a model comes from: the contract of the `model` group, and the choice of its dtype.

Importable without torch, so that rules, memory plan and `task=explain` can ask for shape and dtype. Knows no
concrete source and reads no weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from engine.build import choice, number
from engine.errors import UserError
from engine.models.shape import ModelShape

if TYPE_CHECKING:
    from engine.models.base import LoadedModel

SPELLINGS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
DTYPES = ("auto", "float32", "bfloat16", "float16", "int4", *SPELLINGS)


class Progress(Protocol):
    """Told how far a long read has come."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` (bytes or tensors, as `what` says)."""


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""
    return None


class ModelSource(ABC):
    """Finds one model and loads it. Facts first (shape, dtype), weights only in `load`."""

    name: ClassVar[str]  # how messages call it
    shows_states: ClassVar[bool] = True  # whether its model can `collect` what a draft model reads
    stops_for_attention: ClassVar[bool] = True  # whether its passes yield at attention (models/base.py)

    @dataclass(frozen=True)
    class Config:
        """path: what the source makes of it. load=dummy: seeded random weights of the real shape."""

        path: str | None = None
        dtype: str = choice("auto", DTYPES)
        load: str = choice("auto", ("auto", "dummy"))
        seed: int = number(0, ge=0)

    def __init__(self, config: ModelSource.Config) -> None:
        self.config = config

    @abstractmethod
    def shape(self) -> ModelShape | None:
        """The numbers of the architecture; None while they are not on this machine. Downloads nothing.

        Raises UserError for a path that cannot be read or an architecture that is not supported.
        """

    @abstractmethod
    def packs_int4(self) -> bool:
        """Whether the weights are 4-bit blocks of 32 already, so that int4 loses nothing of them."""

    @abstractmethod
    def load(self, device: str, dtype: str, progress: Progress = silent) -> LoadedModel:
        """Read the weights to `device` in a dtype that `resolve_dtype` gave. Downloads when it must.

        Raises UserError when files are absent, broken, or do not hold exactly the architecture's tensors.
        """

    def resolve_dtype(self, device: str, supported_compute: Sequence[str]) -> str:
        """The dtype of the weights: "float32", "bfloat16", "float16" or "int4".

        device: "cpu" or "cuda" (an index may follow). supported_compute: what the attention backend computes
        in on that device. Raises UserError for a dtype that cannot work, with the nearest that can.
        """
        wanted = SPELLINGS.get(self.config.dtype, self.config.dtype)
        if wanted == "auto":
            return self._automatic(device, supported_compute)
        problem = self._objection(wanted, device, supported_compute)
        if problem:
            raise UserError(
                f"model.dtype={self.config.dtype} cannot work: {problem}; "
                f"use model.dtype={self._nearest(wanted, device, supported_compute)}"
            )
        return wanted

    def _automatic(self, device: str, supported: Sequence[str]) -> str:
        order = ("bfloat16", "float16", "float32") if _is_cuda(device) else ("int4", "float32", "bfloat16")
        return self._first_that_works(order, device, supported)

    def _nearest(self, wanted: str, device: str, supported: Sequence[str]) -> str:
        order = ("float32", "bfloat16") if wanted == "float32" else ("bfloat16", "float16", "float32")
        return self._first_that_works(order, device, supported)

    def _first_that_works(self, order: Sequence[str], device: str, supported: Sequence[str]) -> str:
        working = (dtype for dtype in order if not self._objection(dtype, device, supported))
        return next(working, supported[0] if supported else "float32")

    def _objection(self, dtype: str, device: str, supported: Sequence[str]) -> str:
        """Why `dtype` cannot work, as a clause; empty when it can."""
        if dtype == "int4" and _is_cuda(device):
            return f"int4 weights run on the CPU only, and the device is {device}"
        if dtype == "int4" and not self.packs_int4():
            return f"int4 takes weights that are 4-bit already, and those of {self.name} are not"
        compute = compute_dtype(dtype)
        if compute not in supported:
            asked = f"{compute}, in which int4 computes," if dtype == "int4" else compute
            return f"{asked} is not among what the attention backend has on {device} ({_listed(supported)})"
        return ""


def compute_dtype(dtype: str) -> str:
    """The dtype of activations and KV for weights of `dtype`: int4 weights are multiplied with bfloat16
    activations, the others compute in their own dtype."""
    return "bfloat16" if dtype == "int4" else dtype


def _is_cuda(device: str) -> bool:
    return device.partition(":")[0] == "cuda"


def _listed(dtypes: Sequence[str]) -> str:
    return ", ".join(dtypes) or "none"
