"""Engines whose kernels are chosen as on an H200 and told, not run: which variants would be compiled there.

A variant is what Triton compiles anew for: constants, launch options, and of every other operand its type,
whether an integer is 1 or a multiple of 16 and whether a pointer is aligned to 16 bytes, unless the kernel
says that it does not matter; of kernels in CUDA C++ their constants. Kernels that lead a request to its end
run in the interpreter.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

PROCESSORS, CAPABILITY = 132, 9  # an H200's
GUIDES = ("_opening", "_node_inputs", "_accept_tree", "_enter_run")

Variant = tuple[str, tuple[tuple[str, Any], ...]]


def operand_kind(value: object, special: bool) -> tuple[Any, ...]:
    """What the compiled code depends on. special: the kernel does not decline to be compiled for it."""
    if isinstance(value, Tensor):
        return (value.dtype, special and value.data_ptr() % 16 == 0)
    if isinstance(value, int):
        size = "i1" if isinstance(value, bool) else "i32" if -(2**31) <= value < 2**31 else "i64"
        return (size, special and value == 1, special and value % 16 == 0)
    if hasattr(value, "block_shape"):  # a descriptor
        return (type(value), value.base.dtype, tuple(value.block_shape), str(value.layout))
    return (type(value),)


def variant(kernel: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Variant:
    """kernel: decorated for the interpreter, which keeps what the decorator was told; or in Gluon."""
    told = kernel.kwargs if hasattr(kernel, "kwargs") else {"do_not_specialize": kernel.do_not_specialize}
    plain = told.get("do_not_specialize") or ()
    names = list(inspect.signature(kernel.fn).parameters)
    kinds = [
        (name, operand_kind(value, name not in plain)) for name, value in zip(names, operands, strict=False)
    ]
    return kernel.fn.__name__, (*kinds, *sorted(options.items()))


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Variant]]:
    """The variants that engines built inside launch; their pick of sizes is that for bf16 on an H200."""
    found: set[Variant] = set()
    with monkeypatch.context() as patch:
        _choose_as_on_a_gpu(patch)
        _tell(patch, found)
        yield found


def _choose_as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    import backends
    import kernels
    from backends import triton as backend

    for package in (kernels, backends):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(info.name)  # before the patches: it keeps what it finds at its import
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("kernels", "backends") and hasattr(module, "INTERPRETED"):
            patch.setattr(module, "INTERPRETED", False)
    patch.setattr(backend, "_settle_triton", lambda device: None)
    patch.setattr(backend, "_capability", lambda device: CAPABILITY)
    patch.setattr(backend, "_programs", lambda device: 4 * PROCESSORS)
    patch.setattr(backend, "_queued", lambda: True)
    patch.setattr(backend.TritonAttention, "dtypes", {"cpu": ("bfloat16",)})


def _tell(patch: pytest.MonkeyPatch, found: set[Variant]) -> None:
    """Launches are noted in `found`; tensors that no kernel fills hold zeros, which are tokens and slots."""
    from triton.experimental.gluon._runtime import GluonJITFunction
    from triton.runtime.interpreter import InterpretedFunction

    import kernels.attention_queue as queue
    from kernels.cuda.kernel import CudaKernel

    run = InterpretedFunction.run

    def record(kernel: Any, *operands: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.add(variant(kernel, operands, options))
        if kernel.fn.__name__ in GUIDES:  # all requests in one program
            batch = operands[list(inspect.signature(kernel.fn).parameters).index("batch")]
            here = {"ROWS": 1 << (batch - 1).bit_length()}
            here |= {"PDL": False} if "PDL" in options else {}  # nothing to wait for: they run one by one
            run(kernel, *operands, grid=(1,), warmup=warmup, **{**options, **here})

    def note(kernel: Any, *operands: Any, grid: Any, warmup: bool, **options: Any) -> None:
        found.add(variant(kernel, operands, options))

    def load(kernel: CudaKernel, grid: int, args: Sequence[Any], *, early: bool = False) -> None:
        found.add((kernel.name, tuple(kernel.source.defines.items())))

    patch.setattr(CudaKernel, "__call__", load)
    patch.setattr(queue, "tensor_map", lambda *what: None)  # the driver's
    patch.setattr(InterpretedFunction, "run", record)
    patch.setattr(GluonJITFunction, "run", note)  # for which there is no interpreter
    for place, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        patch.setattr(place, name, getattr(place, name.replace("empty", "zeros")))
