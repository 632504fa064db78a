"""The CUDA driver by ctypes: machine code to functions, tensor maps for the tensor memory accelerator, and
launches on torch's stream. Knows no kernel.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_USED = (
    "cuGetErrorString",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuTensorMapEncodeTiled",
    "cuLaunchKernelEx",
)
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_ELEMENTS = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}  # CUtensorMapL2promotion
_SWIZZLE_128, _PLAIN, _ZEROS = 3, 0, 0  # CUtensorMapSwizzle, -Interleave, -FloatOOBfill
_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class CudaDriverError(RuntimeError):
    """The driver refused a call: which, and why."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: eight bytes for its id, 64 for its value."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_int * 15),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Function:
    """A kernel that the current device has loaded; `shared_bytes` of memory go to each block."""

    name: str
    handle: int
    shared_bytes: int


class TensorMap:
    """Where a tensor is and which box of it a load takes, in the driver's 128 bytes. A launch copies them;
    the tensor's own memory must live until the kernel has run."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        start = ctypes.addressof(self._memory)
        self.address: int = -(-start // _MAP_ALIGNMENT) * _MAP_ALIGNMENT


@functools.cache
def library() -> Any:
    """The driver's library. Raises OSError or AttributeError where it, or a function of it, is missing."""
    found = ctypes.CDLL("libcuda.so.1")
    for name in _USED:
        getattr(found, name)
    return found


def _call(name: str, *args: Any) -> None:
    """Call a function of the driver with ctypes values, as its header has them."""
    driver = library()
    code = getattr(driver, name)(*args)
    if not code:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
    why = text.value.decode() if text.value else "an error without a name"
    raise CudaDriverError(f"{name}: {why} (CUDA error {code})")


def _enter_context() -> None:
    """Torch's context becomes this thread's; torch itself does so only with its first call that needs it."""
    context = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if not context:
        device = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(torch.cuda.current_device()))
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        _call("cuCtxSetCurrent", context)


def load(cubin: bytes, name: str, shared_bytes: int) -> Function:
    """The kernel `name` of machine code, on the current device. It stays loaded while the process runs."""
    _enter_context()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin))
    _call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
    _call("cuFuncSetAttribute", function, ctypes.c_int(_DYNAMIC_SHARED), ctypes.c_int(shared_bytes))
    return Function(name, function.value or 0, shared_bytes)


def tensor_map(
    tensor: Tensor,
    dims: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    promotion: int = 128,
) -> TensorMap:
    """A map of a 16-bit tensor for loads of `box`, swizzled by 128 bytes, with zeros outside of it.

    `dims` (2 to 4) and `box` in elements, innermost first; `strides_bytes` of all but the innermost, which is
    dense; `promotion`: bytes that the second-level cache fetches at once (0, 64, 128, 256). Addresses and
    strides must be multiples of 16 bytes and a box at most 128 bytes wide, else CudaDriverError. (CUDA
    driver API, cuTensorMapEncodeTiled.)
    """
    rank = len(dims)
    if not 2 <= rank <= 4 or len(strides_bytes) != rank - 1 or len(box) != rank:
        raise ValueError(
            f"a map of {rank} dimensions with {len(strides_bytes)} strides and a box of {len(box)}"
        )
    made = TensorMap()
    _call(
        "cuTensorMapEncodeTiled",
        ctypes.c_void_p(made.address),
        ctypes.c_int(_ELEMENTS[tensor.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*dims),
        (ctypes.c_uint64 * (rank - 1))(*strides_bytes),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(_PLAIN),
        ctypes.c_int(_SWIZZLE_128),
        ctypes.c_int(_PROMOTIONS[promotion]),
        ctypes.c_int(_ZEROS),
    )
    return made


def matrix_map(matrix: Tensor, rows: int, columns: int) -> TensorMap:
    """`tensor_map` of a matrix [N, K] that is read by blocks of its rows, which may lie apart, 256 bytes at
    once."""
    (height, width), stride = matrix.shape, matrix.stride(0) * matrix.element_size()
    return tensor_map(matrix, (width, height), (stride,), (columns, rows), 256)


Arg = Tensor | int | float | TensorMap


def launch(function: Function, grid: int, threads: int, args: Sequence[Arg], *, early: bool = False) -> None:
    """Launch `grid` blocks of `threads` on torch's current stream, captured by a CUDA graph or not. A kernel
    takes tensors as pointers, ints and floats of 32 bits, and maps by value. early: blocks may start while
    the kernel in front ends (kernels.launch.dependent)."""
    _enter_context()
    values = [_value(arg) for arg in args]  # alive until the driver has copied them
    places = (ctypes.c_void_p * len(args))(*[place for place, _ in values])
    config = _Config(
        (grid, 1, 1), (threads, 1, 1), function.shared_bytes, torch.cuda.current_stream().cuda_stream,
        ctypes.pointer(_Attribute(id=_EARLY, value=1)), int(early),
    )  # fmt: skip
    _call("cuLaunchKernelEx", ctypes.byref(config), ctypes.c_void_p(function.handle), places, None)


def _value(arg: Arg) -> tuple[int, Any]:
    """Where an argument's bytes are, and what owns them."""
    if isinstance(arg, TensorMap):
        return arg.address, arg
    owner: Any
    if isinstance(arg, Tensor):
        owner = ctypes.c_void_p(arg.data_ptr())
    elif isinstance(arg, float):
        owner = ctypes.c_float(arg)
    elif -(1 << 31) <= arg < 1 << 31:
        owner = ctypes.c_int32(arg)
    else:
        raise OverflowError(f"{arg} as a kernel's argument of 32 bits")
    return ctypes.addressof(owner), owner
