"""Each CUDA source of the package, compiled for Hopper as its launcher asks for it, without a GPU: nothing
spilled, nothing said, on the units that it is written for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from cuda_code import instructions, usage

from engine.kernel_choices.limits import MOST_SHARED
from engine.kernel_choices.plans import HALVES, PAIR, Plan
from kernels import attention_queue, cuda, linear_halves, linear_pair
from kernels.cuda.compile import build
from kernels.cuda.kernel import CudaKernel

KINDS = {torch.bfloat16: ".BF16", torch.float16: ""}
MOST_REGISTERS = 65536
DRIVERS = 1024  # bytes of shared memory of each block that are the driver's
BESIDE = {"attention_queue.cu": 2}  # blocks of a kernel on a processor, if more than one


def pairs(dtype: torch.dtype) -> Iterator[tuple[CudaKernel, set[str]]]:
    for stages in (2, 3):
        for bias in (False, True):
            plan = Plan(PAIR, 256, 64, warps=8, stages=stages, gate=True)
            product, loads = f"HGMMA.64x224x16.F32{KINDS[dtype]}", {"UTMALDG.2D", "UTMALDG.2D.MULTICAST"}
            yield linear_pair._kernel(plan, dtype, bias), {product, *loads, "UCGABAR_WAIT"}


def halves(dtype: torch.dtype) -> Iterator[tuple[CudaKernel, set[str]]]:
    for stages in (2, 4, 6):
        for bias in (False, True):
            product, handed = f"HGMMA.64x128x16.F32{KINDS[dtype]}", "ST.E.128"
            wanted = {product, handed, "UTMALDG.2D", "UCGABAR_WAIT"}
            yield linear_halves._kernel(Plan(HALVES, 128, 64, warps=8, stages=stages), dtype, bias), wanted


def queues(dtype: torch.dtype) -> Iterator[tuple[CudaKernel, set[str]]]:
    for kv_heads, group, page in ((8, 4, 16), (4, 7, 64), (1, 8, 8), (1, 8, 256), (3, 1, 8)):
        products = {f"HGMMA.64x8x16.F32{KINDS[dtype]}"}
        yield attention_queue.kernel(kv_heads, group, page, dtype), {*products, "UTMALDG.4D"}


# By file: the kernels that launchers make of it for a type, with instructions that each must have.
KERNELS: dict[str, Callable[[torch.dtype], Iterator[tuple[CudaKernel, set[str]]]]] = {
    "pair.cu": pairs,
    "halves.cu": halves,
    "attention_queue.cu": queues,
}


def test_every_source_is_looked_at() -> None:
    assert {file.name for file in Path(cuda.__file__).parent.glob("*.cu")} == set(KERNELS)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("file", KERNELS)
def test_sources_fit_a_processor_and_use_its_units(file: str, dtype: torch.dtype, tmp_path: Path) -> None:
    beside = BESIDE.get(file, 1)
    for kernel, wanted in KERNELS[file](dtype):
        assert kernel.source.file == file
        made = build(kernel.source)
        assert made.log == ""  # nor C7508, C7510, C7512: products that had to wait for one another
        used = usage(made.cubin, tmp_path)[kernel.name]
        assert used["STACK"] == used["LOCAL"] == 0
        assert beside * used["REG"] * kernel.threads <= MOST_REGISTERS
        assert beside * (kernel.shared_bytes + used["SHARED"] + DRIVERS) <= MOST_SHARED + DRIVERS
        assert wanted <= set(instructions(made.cubin, tmp_path)), kernel.source.defines
