"""What the CUDA driver is called with: maps, modules and launches against callbacks with its C types."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from ctypes import c_float, c_int32, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import ATTRIBUTE_BYTES, CONFIG_BYTES, Config, FakeCuda, read

from kernels.cuda import driver
from kernels.cuda.driver import CudaDriverError, Function, TensorMap, launch, load, tensor_map

STREAM = 0x7F00000000A8
FUNCTION = Function("go", 0xF00000000F, 65536)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=STREAM))
    return fake


@pytest.mark.parametrize(("dtype", "element"), [(torch.float16, 6), (torch.bfloat16, 9)])
@pytest.mark.parametrize(("promotion", "l2"), [(0, 0), (64, 1), (128, 2), (256, 3)])
@pytest.mark.parametrize(
    ("dims", "strides", "box"),
    [
        ([4096, 256], [8192], [64, 128]),
        ([64, 1 << 33, 3], [128, 1 << 36], [64, 16, 1]),
        ([128, 16, 8, 70000], [256, 4096, 32768], [64, 16, 2, 1]),
    ],
)
def test_a_map_is_asked_for(
    cuda: FakeCuda,
    dtype: torch.dtype,
    element: int,
    promotion: int,
    l2: int,
    dims: Any,
    strides: Any,
    box: Any,
) -> None:
    tensor, rank, seen = torch.zeros(16, dtype=dtype), len(dims), {}

    def encode(*args: Any) -> None:
        seen["dims"] = read(args[4], c_uint64, rank)
        seen["strides"] = read(args[5], c_uint64, rank - 1)
        seen["box"] = read(args[6], c_uint32, rank)
        seen["steps"] = read(args[7], c_uint32, rank)
        ctypes.memset(args[0], 0xAB, 128)

    cuda.on["cuTensorMapEncodeTiled"] = encode
    made = tensor_map(tensor[1:], dims, strides, box, promotion)
    ((place, *args),) = cuda.of("cuTensorMapEncodeTiled")
    assert place == made.address
    assert args[:3] == [element, rank, tensor.data_ptr() + 2]
    assert seen == {"dims": dims, "strides": strides, "box": box, "steps": [1] * rank}
    assert args[7:] == [0, 3, l2, 0]  # not interleaved, swizzled by 128 bytes, zeros outside


def test_the_usual_promotion_is_128_bytes(cuda: FakeCuda) -> None:
    tensor_map(torch.zeros(2, 64, dtype=torch.bfloat16), [64, 2], [128], [64, 2])
    assert cuda.of("cuTensorMapEncodeTiled")[0][10] == 2


def test_maps_lie_on_64_bytes_in_memory_of_their_own() -> None:
    maps = [TensorMap() for _ in range(200)]
    assert {one.address % 64 for one in maps} == {0}
    for one in maps:
        start = ctypes.addressof(one._memory)
        assert start <= one.address
        assert one.address + 128 <= start + ctypes.sizeof(one._memory)
    for i, one in enumerate(maps):
        ctypes.memset(one.address, i, 128)
    gc.collect()
    assert [bytes(read(one.address, ctypes.c_ubyte, 128)) for one in maps] == [
        bytes([i]) * 128 for i in range(200)
    ]


@pytest.mark.parametrize(
    ("dims", "strides", "box"),
    [([64], [], [64]), ([8] * 5, [64] * 4, [8] * 5), ([64, 2], [128, 256], [64, 2]), ([64, 2], [128], [64])],
)
def test_a_map_of_other_dimensions_is_refused(cuda: FakeCuda, dims: Any, strides: Any, box: Any) -> None:
    with pytest.raises(ValueError, match="a map of"):
        tensor_map(torch.zeros(64, dtype=torch.bfloat16), dims, strides, box)
    assert cuda.calls == []


def test_a_map_of_other_elements_is_refused(cuda: FakeCuda) -> None:
    with pytest.raises(KeyError):
        tensor_map(torch.zeros(2, 64), [64, 2], [256], [64, 2])


def test_loading_asks_for_the_memory(cuda: FakeCuda) -> None:
    image = b"\x7fELF machine code"
    function = load(image, "go", 200_000)
    assert function == Function("go", 0xF00000000F, 200_000)
    assert [name for name, _ in cuda.calls] == [
        "cuCtxGetCurrent",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
    ]
    assert cuda.of("cuModuleLoadData")[0][1] == image
    assert cuda.of("cuModuleGetFunction")[0][1:] == (0xA0, b"go")
    assert cuda.of("cuFuncSetAttribute") == [(0xF00000000F, 8, 200_000)]


def test_a_whole_image_is_loaded_though_it_has_zeros(cuda: FakeCuda) -> None:
    image, seen = b"\x7fELF\0\0machine\0code", []
    cuda.cuModuleLoadData = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p)(
        lambda place, data: seen.append(ctypes.string_at(data, len(image))) or 0
    )
    load(image, "go", 0)
    assert seen == [image]


def test_a_thread_without_a_context_takes_torchs(cuda: FakeCuda) -> None:
    cuda.context = 0
    launch(FUNCTION, 1, 32, [])
    launch(FUNCTION, 1, 32, [])
    assert [args[1] for args in cuda.of("cuDeviceGet")] == [2]
    assert [args[1] for args in cuda.of("cuDevicePrimaryCtxRetain")] == [12]
    assert cuda.of("cuCtxSetCurrent") == [(0xC0 + 12,)]
    names = [name for name, _ in cuda.calls]
    assert names.index("cuCtxSetCurrent") < names.index("cuLaunchKernelEx")
    cuda.context, cuda.calls[:] = 0, []
    load(b"", "go", 0)
    assert cuda.of("cuCtxSetCurrent") == [(0xC0 + 12,)]


def test_a_launch_hands_every_argument_by_its_place(cuda: FakeCuda) -> None:
    tensor, made, seen = torch.zeros(8), TensorMap(), []
    ctypes.memset(made.address, 0x5A, 128)

    def copied(*args: Any) -> None:
        places = read(args[2], c_void_p, 6)
        kinds = [c_void_p, c_int32, c_int32, c_float, c_int32]
        seen.extend(read(place, kind, 1)[0] for place, kind in zip(places, kinds, strict=False))
        seen.append(bytes(read(places[5], ctypes.c_ubyte, 128)))
        assert places[5] == made.address

    cuda.on["cuLaunchKernelEx"] = copied
    launch(FUNCTION, 264, 384, [tensor[2:], -7, 2**31 - 1, 0.5, True, made])
    assert seen == [tensor.data_ptr() + 8, -7, 2**31 - 1, 0.5, 1, b"\x5a" * 128]
    ((config, (function, _, extra)),) = cuda.launches()
    assert function == FUNCTION.handle
    assert config == Config((264, 1, 1), (384, 1, 1), 65536, STREAM, ())
    assert extra is None


def test_an_early_launch_is_a_dependent_one(cuda: FakeCuda) -> None:
    """By one attribute, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, which is 1; else by none."""
    one = (1).to_bytes(4, "little") + bytes(60)
    launch(FUNCTION, 7, 32, [1], early=True)
    launch(FUNCTION, 7, 32, [1])
    launch(FUNCTION, 7, 32, [1], early=False)
    assert [config.attributes for config, _ in cuda.launches()] == [((6, one),), (), ()]
    assert {(config.grid, config.stream) for config, _ in cuda.launches()} == {((7, 1, 1), STREAM)}


def test_structures_are_as_large_as_the_drivers() -> None:
    """And their parts where a C compiler puts them."""
    assert ctypes.sizeof(driver._Config) == CONFIG_BYTES
    assert ctypes.sizeof(driver._Attribute) == ATTRIBUTE_BYTES
    config, attribute = driver._Config, driver._Attribute
    assert (config.shared_bytes.offset, config.stream.offset, config.attributes.offset) == (24, 32, 40)
    assert (config.count.offset, attribute.value.offset) == (48, 8)


def test_many_arguments_stay_until_they_are_copied(cuda: FakeCuda) -> None:
    seen: list[int] = []

    def copied(*args: Any) -> None:
        gc.collect()
        seen.extend(read(place, c_int32, 1)[0] for place in read(args[2], c_void_p, 500))

    cuda.on["cuLaunchKernelEx"] = copied
    launch(FUNCTION, 1, 32, list(range(1000, 1500)))
    assert seen == list(range(1000, 1500))


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_a_number_of_more_bits_is_refused(cuda: FakeCuda, number: int) -> None:
    with pytest.raises(OverflowError, match=str(number)):
        launch(FUNCTION, 1, 32, [number])
    assert cuda.launches() == []


def _map() -> None:
    tensor_map(torch.zeros(2, 64, dtype=torch.bfloat16), [64, 2], [128], [64, 2])


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("cuCtxGetCurrent", lambda: launch(FUNCTION, 1, 32, [])),
        ("cuDeviceGet", lambda: launch(FUNCTION, 1, 32, [])),
        ("cuDevicePrimaryCtxRetain", lambda: launch(FUNCTION, 1, 32, [])),
        ("cuCtxSetCurrent", lambda: launch(FUNCTION, 1, 32, [])),
        ("cuLaunchKernelEx", lambda: launch(FUNCTION, 1, 32, [])),
        ("cuModuleLoadData", lambda: load(b"", "go", 0)),
        ("cuModuleGetFunction", lambda: load(b"", "go", 0)),
        ("cuFuncSetAttribute", lambda: load(b"", "go", 0)),
        ("cuTensorMapEncodeTiled", _map),
    ],
)
def test_every_refusal_is_named(cuda: FakeCuda, name: str, act: Callable[[], None]) -> None:
    for code, said in ((1, "invalid argument"), (9999, "an error without a name")):
        cuda.context, cuda.codes = 0, {name: code}
        with pytest.raises(CudaDriverError, match=f"^{name}: {said} \\(CUDA error {code}\\)$"):
            act()
        assert cuda.calls[-2][0] == name  # the call itself, then the question what its error means


def test_the_library_must_have_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    driver.library.cache_clear()
    whole = FakeCuda()
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: {"libcuda.so.1": whole}[name])
    try:
        assert driver.library() is whole
        driver.library.cache_clear()
        del whole.cuTensorMapEncodeTiled
        with pytest.raises(AttributeError, match="cuTensorMapEncodeTiled"):
            driver.library()
    finally:
        driver.library.cache_clear()
