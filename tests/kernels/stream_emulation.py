"""Streamed attention's own text, launch and merge included, run on numpy in place of Gluon, program by
program: addresses, masks, phases, and who may touch shared memory when.

Copies land as late as they may, when a wait asks for them; what lies in shared memory until then, or is still
read, must not be touched. Layouts are left out: they say which thread holds a value, not which value it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from direct_emulation import Lanes, Machine, Operand, Pointer, lanes
from stream_memory import Barrier, Barriers, Pending, Shared

KERNELS = Path(__file__).parents[2] / "kernels"
SOURCES = [KERNELS / f"attention_{name}.py" for name in ("stream_merge", "stream")]
Ids = tuple[int, int, int]  # of a program: KV head, request, split
Order = Callable[[list[Ids]], list[Ids]]


@dataclass
class Memory(Operand):
    """A tensor's own storage. shared: others write it too, so that reads go past the first cache."""

    array: np.ndarray = field(default_factory=lambda: np.empty(0))
    shared: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor, early: bool = False, shared: bool = False) -> Memory:
        array = torch.as_strided(
            tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0
        )
        assert tensor.storage_offset() == 0
        values = array.numpy()
        return cls(len(values), values.__getitem__, early, array=values, shared=shared)


@dataclass
class Pool:
    """A descriptor's side of the KV pool. copied: how often each element was; settled: slots that may be read
    before the wait."""

    side: torch.Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    layout: Any
    settled: np.ndarray = field(init=False)
    dtype: Any = "as q"

    def __post_init__(self) -> None:
        assert self.strides[1] == 1
        self.array = torch.as_strided(self.side, self.shape, self.strides).numpy()
        self.copied = np.zeros(self.shape, np.int64)
        self.early = 0  # elements that were asked for before the wait

    def part(self, slot: int, column: int) -> np.ndarray:
        """A block from there on; zeros behind the pool's end."""
        rows, columns = self.block_shape
        assert slot >= 0
        assert 0 <= column <= self.shape[1] - columns
        here = slice(slot, slot + rows), slice(column, column + columns)
        self.copied[here] += 1
        found = np.zeros(self.block_shape)
        real = self.array[here]
        found[: len(real)] = real
        return found


class StreamMachine(Machine):
    """What the kernel's text finds under its imports, for one program after another."""

    bfloat16, float16 = "bfloat16", "float16"
    NVMMASharedLayout = SimpleNamespace(get_default_for=lambda shape, kind: ("swizzled", tuple(shape), kind))

    def __init__(self, order: Order = lambda ids: ids) -> None:
        super().__init__()
        self.order, self.ids, self.grid = order, (0, 0, 0), (0, 0, 0)
        self.shared: list[Shared] = []
        self.barriers: list[Barrier] = []
        self.groups: list[tuple[Pending, list[Shared]]] = []
        self.unseen = False  # stores since the last barrier, which other programs may not see yet

    def begin(self, ids: Ids) -> None:
        self.ids, self.waited, self.unseen = ids, False, False
        self.shared, self.barriers, self.groups = [], [], []

    def end(self) -> None:
        assert self.waited, "a program that returned before the wait"
        assert not any(barrier.armed for barrier in self.barriers), "copies that none waited for"

    def program_id(self, axis: int) -> Lanes:
        return lanes(np.int32(self.ids[axis]))

    def num_programs(self, axis: int) -> Lanes:
        return lanes(np.int32(self.grid[axis]))

    def load(
        self,
        at: Pointer,
        mask: Any = True,
        other: Any = 0,
        eviction_policy: str = "",
        cache_modifier: str = "",
    ) -> Lanes:
        assert self.waited or at.operand.early, "read before the wait"
        assert cache_modifier == ".cg" or not getattr(at.operand, "shared", False), (
            "read from the first cache"
        )
        found, mask = at.real(mask)
        at.operand.touched.append(found)
        read = at.operand.values(found)
        values = np.full(mask.shape, other, dtype=read.dtype)
        values[mask] = read
        return lanes(values)

    def store(self, at: Pointer, values: Any, mask: Any = True) -> None:
        assert self.waited
        found, mask = at.real(mask)
        at.operand.touched.append(found)
        at.operand.array[found] = np.broadcast_to(values, mask.shape)[mask]
        self.unseen = True

    def atomic_add(self, at: Pointer, value: int, sem: str) -> Lanes:
        assert (self.waited, self.unseen, sem) == (True, False, "acq_rel"), "parts that may not be seen yet"
        found, _ = at.real(True)
        before = at.operand.array[found[0]]
        at.operand.array[found[0]] += value
        return lanes(before)

    def allocate_shared_memory(self, kind: Any, shape: list[int], layout: Any) -> Shared | Barriers:
        if kind is np.int64:
            self.barriers += [Barrier() for _ in range(shape[0])]
            return Barriers(self.barriers[-shape[0] :])
        self.shared.append(Shared.empty(shape))
        return self.shared[-1]

    def copy(self, pool: Pool, place: list[Any], barrier: Barrier, target: Shared, pred: Any) -> None:
        if not pred:
            return
        slot, column = (int(number) for number in place)
        assert target.data.shape == tuple(pool.block_shape)
        if not self.waited:
            assert pool.settled[slot : slot + pool.block_shape[0]].all(), "keys that may be written now"
            pool.early += target.data.size
        barrier.copy(target, pool.part(slot, column))

    def multiply(self, a: Shared, b: Shared, acc: Any, is_async: bool) -> Pending:
        if isinstance(acc, Pending):  # sums of one product after another
            acc = acc.values
        for operand in (a, b):
            operand.ask()
        made = Pending(lanes(acc + np.matmul(a.data, b.data)))
        self.groups.append((made, [a, b]))
        return made

    def finish(self, outstanding: int, deps: Sequence[Pending]) -> Lanes:
        for made, operands in self.groups[: len(self.groups) - outstanding]:
            made.done = True
            for operand in operands:
                operand.asked()
        return deps[0].result()

    def fence(self) -> None:
        for each in self.shared:
            each.fence()

    def barrier(self) -> None:
        self.unseen = False
        for each in self.shared:
            each.barrier()

    maximum = staticmethod(lambda a, b: lanes(np.maximum(a, b)))
    minimum = staticmethod(lambda a, b: lanes(np.minimum(a, b)))
    where = staticmethod(lambda real, a, b: lanes(np.where(real, a, b)))
    full = staticmethod(lambda shape, value, kind, layout: lanes(np.full(shape, value)))
    zeros_like = staticmethod(lambda x: lanes(np.zeros_like(x)))
    permute = staticmethod(lambda x, order: lanes(np.transpose(x, order)))
    max = staticmethod(lambda x, axis: lanes(np.max(x, axis=axis)))
    exp2 = staticmethod(lambda x: lanes(np.where(x < -149, 0, np.exp2(x))))  # as of 32 bits


@dataclass
class Launch:
    """The kernel as attention_stream finds it: kernel[grid](...)."""

    machine: StreamMachine
    body: Callable[..., None]
    settled: Callable[[int], np.ndarray]
    operands: list[Any] = field(default_factory=list)  # of the last launch: q, pools, out, ...

    def __getitem__(self, grid: Ids) -> Callable[..., None]:
        def run(q: Any, k: Pool, v: Pool, out: Any, *rest: Any, **constants: Any) -> None:
            room, described = rest[:3], rest[3:6]
            operands = [
                Memory.of(q), k, v, Memory.of(out), *(Memory.of(each, shared=True) for each in room),
                *(Memory.of(each, early=True, shared=True) for each in described), float(rest[6]),
                *(lanes(np.int32(number)) for number in rest[7:]),
            ]  # fmt: skip
            self.operands = operands
            used = {"num_warps", "maxnreg", "launch_pdl"}
            named = {name: value for name, value in constants.items() if name not in used}
            self.machine.grid = grid
            ids = [(g, r, s) for s in range(grid[2]) for r in range(grid[1]) for g in range(grid[0])]
            for program in self.machine.order(ids):
                self.machine.begin(program)
                k.settled = v.settled = self.settled(program[1])
                with np.errstate(all="ignore"):  # rows that are none
                    self.body(*operands, **named)
                self.machine.end()

        return run


def module(
    machine: StreamMachine, settled: Callable[[int], np.ndarray], edit: Callable[[str], str] = str
) -> dict[str, Any]:
    """The names of both modules, their kernels emulated, of float64 tensors. edit: changes their text."""
    made: dict[str, Any] = {
        "gl": machine,
        "mbarrier": SimpleNamespace(
            init=Barrier.init, expect=Barrier.expect, wait=Barrier.wait, MBarrierLayout=lambda: None
        ),
        "tma": SimpleNamespace(async_copy_global_to_shared=machine.copy),
        "warpgroup_mma": machine.multiply,
        "warpgroup_mma_wait": machine.finish,
        "fence_async_shared": machine.fence,
        "gluon_barrier": machine.barrier,
        "gluon_enter": machine.enter,
        "gluon_jit": lambda f=None, **_: f or (lambda body: Launch(machine, body, settled)),
        "TensorDescriptor": Pool,
        "LOG2_E": 1.0 / np.log(2.0),
        "dependent": lambda wanted: {"PDL": wanted},
        "power_of_two": lambda n: 1 << max(n - 1, 0).bit_length(),
    }
    for source in SOURCES:
        tree = ast.parse(edit(source.read_text()))
        tree.body = [
            line for line in tree.body if not (isinstance(line, ast.ImportFrom) and "." in str(line.module))
        ]
        exec(compile(tree, str(source), "exec"), made)
    made["DTYPES"] = {torch.float64: "float64"}
    return made
