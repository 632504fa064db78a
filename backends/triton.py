"""Attention and token-wise operations as Syncless's own Triton kernels; interpreted where there is no GPU.

Settles how Triton runs in this process, sizes the split workspace, and hands the passes to the kernels.
Importable without torch and Triton.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from backends.base import AttentionBackend, AttentionContext, AttentionSizes
from engine.batch import ForwardBatch, HostLens, LayerKV, Mode
from engine.build import number
from engine.errors import UserError
from engine.lazy import lazy_import
from kernels.attention_splits import DECODE_ROWS, Space, SplitPlan

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from kernels import attention_decode, attention_extend, attention_merge, attention_tiles
else:
    torch = lazy_import("torch")
    attention_decode = lazy_import("kernels.attention_decode")
    attention_extend = lazy_import("kernels.attention_extend")
    attention_merge = lazy_import("kernels.attention_merge")
    attention_tiles = lazy_import("kernels.attention_tiles")

log = logging.getLogger("syncless")

_PROGRAMS_PER_PROCESSOR = 4  # of a GPU's multiprocessors: enough to hide the latency of scattered loads


class TritonAttention(AttentionBackend):
    """Grids come from sizes that never change, work from the device lengths: one launch serves any
    lengths."""

    host_lens = HostLens.NONE  # splits and ends of loops are computed in the kernels
    tree_mask = True  # read in the kernel
    device_metadata = True  # there is none: page table and lengths are read in the kernels
    page_sizes = None  # the page size is a constant of the compiled kernel
    dtypes = {"cpu": ("float32",), "cuda": ("float32", "bfloat16", "float16")}  # noqa: RUF012
    max_verify_width = 16  # all tokens of a request share one block of new keys
    step_kernels = "triton"
    own_products = True  # of few tokens, where a table has a plan for them

    @dataclass(frozen=True)
    class Config:
        """kv_splits: parts of a prefix that are worked on at a time; 0 chooses by batch and context.
        dependent_launch: programs of a kernel start while the one in front ends; for GPUs that can (compute
        capability 9 and up), no difference elsewhere."""

        kv_splits: int = number(0, ge=0, le=32)
        dependent_launch: bool = True

    def __init__(self, config: Config, context: AttentionContext) -> None:
        _settle_triton(context.device.type)
        from backends.triton_ops import TritonOps  # decorates kernels, which fixes how they run

        self._context = context
        generation = _capability(context.device)
        early = config.dependent_launch and generation >= attention_tiles.HOPPER
        self.ops = TritonOps(context.choices, early=early)
        tiles = attention_tiles.tiles_for(generation, context.dtype.itemsize, context.head_dim)
        tiles = replace(tiles, queued=tiles.streamed is not None and _queued())
        self._tiles = tiles.dependent() if early else tiles
        self._lean, self._lean_tiles = context.lean if early else frozenset(), self._tiles.lean()
        self._plan = _split_plan(_programs(context.device), config, context.dtype.itemsize)
        self._workspace = attention_merge.Workspace.allocate(_space(self._plan, context), context.device)

    @classmethod
    def workspace_bytes(cls, config: Config, sizes: AttentionSizes, children: Sequence[int]) -> int:
        programs = _PROGRAMS_PER_PROCESSOR * sizes.processors
        return _space(_split_plan(programs, config, sizes.element_size), sizes).bytes

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Nothing to prepare: the kernels read the batch itself."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kv: LayerKV, batch: ForwardBatch) -> Tensor:
        scale, page_size = self._context.scale, self._context.page_size
        if batch.mode is Mode.EXTEND:
            out = attention_extend.attention_extend(
                q, kv, batch, scale, page_size, self._tiles, self._plan, self._workspace
            )
        else:
            tiles = self._lean_tiles if q.shape[0] in self._lean else self._tiles
            out = attention_decode.attention_decode(
                q, kv, batch, scale, page_size, tiles, self._plan, self._workspace
            )
        return out.flatten(1)


def _capability(device: torch.device) -> int:
    """Major compute capability; 0 where kernels are interpreted."""
    return 0 if device.type == "cpu" else torch.cuda.get_device_capability(device)[0]


@cache
def _queued() -> bool:
    """Whether kernels in CUDA C++ can be used, on a GPU that they are for; if not, a warning says why."""
    from kernels.cuda.available import why_not  # loads torch

    reason = why_not()
    if reason:
        log.warning("attention=triton decodes very many requests with its second-best kernel: %s", reason)
    return not reason


def _programs(device: torch.device) -> int:
    """That fill the device; interpreted ones run one after another."""
    if device.type == "cpu":
        return 1
    return _PROGRAMS_PER_PROCESSOR * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _split_plan(programs: int, config: TritonAttention.Config, element_size: int) -> SplitPlan:
    fixed = config.kv_splits or int(programs == 1)  # where nothing runs side by side, a split only adds work
    return SplitPlan(programs, fixed, DECODE_ROWS[element_size])


def _space(plan: SplitPlan, sizes: AttentionContext | AttentionSizes) -> Space:
    """What is planned for, and what is allocated."""
    positions = -(-sizes.max_context // sizes.page_size) * sizes.page_size
    shape = sizes.max_rows, sizes.max_width, sizes.num_heads, sizes.num_kv_heads
    return Space(plan.cells(*shape, positions), plan.split_tiles(*shape), sizes.head_dim)


def _settle_triton(device_type: str) -> None:
    """Turn the interpreter on for the CPU before Triton is loaded; refuse what can no longer be had."""
    if find_spec("triton") is None:
        raise UserError(
            "attention=triton needs the package triton, which is not installed (it exists for Linux only): "
            "pip install 'triton>=3.6,<3.8', or choose attention=torch"
        )
    interpret = device_type == "cpu"
    if interpret and "triton" not in sys.modules:
        os.environ["TRITON_INTERPRET"] = "1"
    from kernels.launch import INTERPRETED

    if interpret != INTERPRETED:
        raise UserError(_CLASH[INTERPRETED])
    if interpret:
        _check_interpreter()
        _announce_interpreter()


def _check_interpreter() -> None:
    """Triton 3.6 converts one-element arrays to integers, which numpy 2.4 no longer does."""
    triton, numpy = version("triton"), version("numpy")
    if _release(triton) < (3, 7) and _release(numpy) >= (2, 4):
        raise UserError(
            f"attention=triton on the CPU: the interpreter of triton {triton} fails with numpy {numpy}: "
            "pip install 'triton>=3.7,<3.8' or 'numpy<2.4', or choose attention=torch"
        )


def _release(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@cache
def _announce_interpreter() -> None:
    log.warning(
        "attention=triton without a GPU runs in Triton's interpreter: correct, but about one token a second "
        "of a 135M model; attention=torch is the fast choice on a CPU"
    )


_CLASH = {
    True: "attention=triton on a GPU found Triton in interpreter mode: unset TRITON_INTERPRET, or, if this "
    "process used attention=triton on the CPU before, start a new one",
    False: "attention=triton on the CPU needs Triton's interpreter, but Triton was already loaded for a GPU "
    "in this process: start with TRITON_INTERPRET=1 in the environment, or choose attention=torch",
}
