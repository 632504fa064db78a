"""A kernel is compiled and loaded once for each device, counted, and launched with what it was made with."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import Config, FakeCuda, read

from engine.compiled import COMPILED
from kernels.cuda import driver, kernel
from kernels.cuda.compile import Source
from kernels.cuda.driver import CudaDriverError
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.nvrtc import CudaCompileError

SOURCE = Source("none.cu", {"BF": 1})


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(driver, "library", lambda: fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=9))
    monkeypatch.setattr(COMPILED, "total", COMPILED.total)  # what is loaded here, nobody compiled
    return fake


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """What was compiled; it takes its time."""
    sources: list[Source] = []

    def compiled(source: Source) -> bytes:
        sources.append(source)
        time.sleep(0.02)
        return b"image"

    monkeypatch.setattr(kernel, "compiled", compiled)
    return sources


def test_building_compiles_and_asks_no_driver(cuda: FakeCuda, asked: list[Source]) -> None:
    """Another process loads it from the cache on disk."""
    before = COMPILED.total
    CudaKernel(SOURCE, "go", 384, 200_000).build()
    assert (asked, cuda.calls, COMPILED.total) == ([SOURCE], [], before)


def test_preparing_launches_nothing_and_launching_prepares(cuda: FakeCuda, asked: list[Source]) -> None:
    before, made = COMPILED.total, CudaKernel(SOURCE, "go", 384, 200_000)
    assert asked == cuda.calls == []
    made.prepare()
    assert asked == [SOURCE]
    assert cuda.of("cuModuleLoadData")[0][1] == b"image"
    assert cuda.launches() == []
    seen: list[int] = []
    cuda.on["cuLaunchKernelEx"] = lambda *args: seen.extend(
        read(read(args[2], driver.ctypes.c_void_p, 1)[0], driver.ctypes.c_int32, 1)
    )
    made(264, [41])
    made(2, [42], early=True)
    assert seen == [41, 42]
    plain, early = (config for config, _ in cuda.launches())
    assert plain == Config((264, 1, 1), (384, 1, 1), 200_000, 9, ())
    assert (early.grid, early.block, early.shared_bytes) == ((2, 1, 1), (384, 1, 1), 200_000)
    assert [number for number, _ in early.attributes] == [6]
    assert asked == [SOURCE]
    assert COMPILED.total == before + 1


def test_threads_load_it_once(cuda: FakeCuda, asked: list[Source]) -> None:
    before, made, start = COMPILED.total, CudaKernel(SOURCE, "go", 32, 0), threading.Barrier(8)

    def use() -> None:
        start.wait()
        made.prepare()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == [SOURCE]
    assert len(cuda.of("cuModuleLoadData")) == 1
    assert COMPILED.total == before + 1


def test_each_device_has_its_own(
    cuda: FakeCuda, asked: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, made = COMPILED.total, CudaKernel(SOURCE, "go", 32, 0)
    first = made.prepare()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    second = made.prepare()
    assert second is not first
    assert made.prepare() is second
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert made.prepare() is first
    assert COMPILED.total == before + 2


def test_what_failed_is_not_kept(cuda: FakeCuda, asked: list[Source]) -> None:
    before, made = COMPILED.total, CudaKernel(SOURCE, "go", 32, 0)
    cuda.codes["cuModuleLoadData"] = 1
    for _ in range(2):
        with pytest.raises(CudaDriverError, match="cuModuleLoadData"):
            made(1, [])
    assert COMPILED.total == before
    cuda.codes.clear()
    made(1, [])
    assert len(cuda.launches()) == 1
    assert COMPILED.total == before + 1


def test_a_real_source_reaches_the_driver(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    file = tmp_path / "go.cu"
    file.write_text('extern "C" __global__ void go() {}\n')
    images: list[bytes] = []
    cuda.on["cuModuleLoadData"] = lambda place, image: images.append(image)
    CudaKernel(Source(str(file), {"BF": 1}), "go", 32, 0).prepare()
    assert images[0].startswith(b"\x7fELF")
    file.write_text('extern "C" __global__ void go() { absent(); }\n')
    with pytest.raises(CudaCompileError, match=r"go\.cu\(1\): error"):
        CudaKernel(Source(str(file), {"BF": 1}), "go", 32, 0).prepare()
