"""The direct kernel's own text, run on numpy in place of Gluon: addresses, masks and sums, without a GPU.

Layouts are left out: they say which thread holds a value, not which value it is. 32-bit indices overflow as
they would on a GPU; an address outside of an operand, or an operand that others write read too early, raises.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.kernel_choices.plans import HELD_INPUTS, Plan

SOURCE = Path(__file__).parents[2] / "kernels" / "linear_direct.py"
Values = Callable[[np.ndarray], np.ndarray]  # addresses -> what lies there


@dataclass
class Operand:
    """size: elements; values: what they are; early: whether they may be read before the wait."""

    size: int
    values: Values
    early: bool = False
    touched: list[np.ndarray] = field(default_factory=list)
    stored: list[np.ndarray] = field(default_factory=list)

    @property
    def dtype(self) -> SimpleNamespace:
        return SimpleNamespace(element_ty=float)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self, np.asarray(offset, dtype=np.int64))

    def times_touched(self) -> np.ndarray:
        return np.bincount(np.concatenate(self.touched), minlength=self.size)


@dataclass(frozen=True)
class Pointer:
    operand: Operand
    at: np.ndarray

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.operand, self.at + np.asarray(offset, dtype=np.int64))

    def real(self, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """(addresses of the lanes that are not masked, the mask)."""
        mask = np.broadcast_to(mask, np.broadcast_shapes(np.shape(mask), self.at.shape))
        found = np.broadcast_to(self.at, mask.shape)[mask]
        outside = found[(found < 0) | (found >= self.operand.size)]
        assert not outside.size, f"addresses {outside[:3]} of {self.operand.size}"
        return found, mask


class Lanes(np.ndarray):
    """An array with Gluon's `to`: integers change their width, other values stay exact."""

    def to(self, kind: Any) -> Lanes:
        return self.astype(kind) if np.issubdtype(self.dtype, np.integer) and kind is np.int64 else self


def lanes(values: Any) -> Lanes:
    return np.asarray(values).view(Lanes)


class Machine:
    """What the kernel's text finds under the name gl, for one program after another."""

    constexpr, float32, int64, static_range = object, np.float32, np.int64, range
    BlockedLayout = SliceLayout = DotOperandLayout = staticmethod(lambda *_: None)

    def __init__(self) -> None:
        self.program = 0
        self.waited = False

    def enter(self, dependent: bool) -> None:
        self.waited = True

    def program_id(self, axis: int) -> Lanes:
        return lanes(np.int32(self.program))

    def load(self, at: Pointer, mask: Any = True, other: float = 0.0, eviction_policy: str = "") -> Lanes:
        assert self.waited or at.operand.early
        found, mask = at.real(mask)
        at.operand.touched.append(found)
        values = np.full(mask.shape, other)
        values[mask] = at.operand.values(found)
        return lanes(values)

    @staticmethod
    def store(at: Pointer, values: Any, mask: Any) -> None:
        found, mask = at.real(mask)
        at.operand.touched.append(found)
        at.operand.stored.append(np.broadcast_to(values, mask.shape)[mask])

    @staticmethod
    def NVMMADistributedLayout(_: Any, warps: list[int], __: Any) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(warps_per_cta=warps)

    @staticmethod
    def arange(start: int, end: int, layout: Any) -> Lanes:
        assert end > start
        assert (end - start) & (end - start - 1) == 0, "no power of two"
        return lanes(np.arange(start, end, dtype=np.int32))

    @staticmethod
    def where(real: Any, one: Any, other: Any) -> Lanes:
        return lanes(np.where(real, one, np.asarray(other, dtype=one.dtype)))

    @staticmethod
    def minimum(one: Any, other: int) -> Lanes:
        return lanes(np.minimum(one, np.int32(other)))

    zeros = staticmethod(lambda shape, kind, layout: lanes(np.zeros(shape)))
    exp = staticmethod(np.exp)
    sum = staticmethod(lambda x, axis: lanes(np.sum(x, axis=axis)))
    reshape = staticmethod(lambda x, shape: lanes(np.reshape(x, shape)))
    convert_layout = staticmethod(lambda x, layout: x)


def kernel(machine: Machine, edit: Callable[[str], str] = lambda text: text) -> Callable[..., None]:
    """The kernel as a function of operands and constants. edit: changes its text."""
    tree = ast.parse(edit(SOURCE.read_text()))
    tree.body = [
        line for line in tree.body if not (isinstance(line, ast.ImportFrom) and "." in str(line.module))
    ]
    names: dict[str, Any] = {
        "gl": machine,
        "gluon_jit": lambda f=None, **_: f or (lambda g: g),
        "gluon_enter": machine.enter,
        "mma_v2": lambda a, b, c: lanes(c + np.matmul(a, b)),
    }
    exec(compile(tree, str(SOURCE), "exec"), names)
    made: Callable[..., None] = names["_linear_direct"]
    return made


def constants(plan: Plan, tokens: int, n: int, k: int, bias: bool) -> dict[str, Any]:
    """Of a launch, as kernels.linear gives them; and `programs`."""
    columns, steps = max(8, 1 << (tokens - 1).bit_length()), -(-k // plan.block_k)
    held = columns * steps * plan.block_k // (64 * plan.warps)
    return {
        "M": columns, "N": n, "K": k, "BLOCK_N": plan.block_n, "BLOCK_K": plan.block_k, "WARPS": plan.warps,
        "AHEAD": min(plan.stages, steps), "TURNS": plan.turns, "HOLD": plan.turns > 1 and held <= HELD_INPUTS,
        "GATE": plan.gate, "BIAS": bias, "PDL": True,
    }  # fmt: skip
