"""Where kernels in CUDA C++ can be used, and what is said where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.cuda import available, driver, nvrtc
from kernels.cuda.available import why_not


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process that can use them: a CUDA build, a device of 9.0, a driver; NVRTC is the real one."""
    available._why_not.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(driver, "library", object)
    yield monkeypatch
    available._why_not.cache_clear()


def test_a_build_of_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert why_not() == "this build of torch is without CUDA"


def test_no_device(hopper: pytest.MonkeyPatch) -> None:
    hopper.setattr(torch.cuda, "is_available", lambda: False)
    assert why_not() == "torch finds no CUDA device"


def test_hopper_can(hopper: pytest.MonkeyPatch) -> None:
    assert why_not() == ""


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 1), (10, 0), (12, 0)])
def test_other_devices_cannot(hopper: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    hopper.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert why_not() == "the device has compute capability {}.{}, not 9.0".format(*capability)


def _raises(error: Exception) -> Callable[[], Any]:
    def missing() -> Any:
        raise error

    return missing


@pytest.mark.parametrize(
    "error",
    [
        OSError("libcuda.so.1: cannot open shared object file"),
        AttributeError("undefined symbol: cuTensorMapEncodeTiled"),
    ],
)
def test_a_driver_that_cannot_be_used(hopper: pytest.MonkeyPatch, error: Exception) -> None:
    hopper.setattr(driver, "library", _raises(error))
    assert why_not() == f"the CUDA driver's library cannot be used: {error}"


def test_no_nvrtc(hopper: pytest.MonkeyPatch) -> None:
    hopper.setattr(nvrtc, "_found", lambda: "libnvrtc.so.13: no such file")
    assert why_not() == "NVRTC cannot be loaded: libnvrtc.so.13: no such file"


def test_an_nvrtc_that_cannot_compile_for_hopper(hopper: pytest.MonkeyPatch) -> None:
    def refuse(text: str, name: str, arch: str) -> Any:
        raise nvrtc.CudaCompileError(f"NVRTC refused {name} for {arch} (error 5):\ninvalid value")

    hopper.setattr(nvrtc, "_found", lambda: SimpleNamespace(build=refuse))
    assert why_not() == "NVRTC refused empty.cu for sm_90a (error 5): invalid value"


def test_a_device_is_looked_at_once(hopper: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def capability(device: int) -> tuple[int, int]:
        asked.append(device)
        return (9, 0) if device else (8, 0)

    hopper.setattr(torch.cuda, "get_device_capability", capability)
    assert "8.0" in why_not()
    assert "8.0" in why_not()
    hopper.setattr(torch.cuda, "current_device", lambda: 1)
    assert why_not() == ""
    assert why_not() == ""
    assert asked == [0, 1]
