"""The functions that CUDA sources share, on the device: loads by map, products, values; and launches."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from cuda_code import PROBE
from torch import Tensor

from kernels.cuda.available import why_not
from kernels.cuda.compile import Source
from kernels.cuda.driver import TensorMap, tensor_map
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.wgmma import mma

pytestmark = pytest.mark.gpu
TYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if reason := why_not():
        pytest.skip(reason)


def probe(name: str, dtype: torch.dtype, dims: int = 2, width: int = 8) -> CudaKernel:
    bfloat = dtype == torch.bfloat16
    source = Source(PROBE, {"BF": int(bfloat), "DIMS": dims, "WIDTH": width}, mma([width], bfloat))
    return CudaKernel(source, name, 128, 1024 + (64 + width) * 128)


def mapped(x: Tensor, *box: int) -> TensorMap:
    """A map of all of x, which is dense in its last dimension only; box from the outermost."""
    strides = [step * x.element_size() for step in x.stride()[:-1]]
    return tensor_map(x, x.shape[::-1], strides[::-1], box[::-1], 256)


def behind(x: Tensor, row: int) -> Tensor:
    """16 rows of the second last dimension from `row` on, with zeros behind its end."""
    there = x[..., row : row + 16, :]
    return torch.nn.functional.pad(there, (0, 0, 0, 16 - there.shape[-2]))


@TYPES
@pytest.mark.parametrize("row", [0, 5, 17, 30, 40])
@pytest.mark.parametrize(("dims", "outer"), [(2, ()), (3, (4,)), (4, (3, 2))])
def test_loads(dtype: torch.dtype, row: int, dims: int, outer: tuple[int, ...]) -> None:
    whole = torch.randn(*outer, 40, 72, device="cuda").to(dtype)
    x = whole[..., :32, :64]  # what is behind it would be seen
    blocks = max(2, x[..., 0, 0].numel())
    out = torch.full((blocks, 16, 64), torch.nan, device="cuda", dtype=dtype)
    box = (1,) * len(outer) + (16, 64)
    probe("copy", dtype, dims)(blocks, [mapped(x, *box), out, row, 0.0])
    assert torch.equal(out, behind(x, row).reshape(-1, 16, 64).expand(blocks, 16, 64))


@TYPES
@pytest.mark.parametrize("width", [8, 96, 128, 248, 256])
def test_products(dtype: torch.dtype, width: int) -> None:
    a, b = (torch.randint(-4, 5, (n, 64), device="cuda").to(dtype) for n in (64, width))
    out, kernel = torch.full((64, width), torch.nan, device="cuda"), probe("product", dtype, width=width)
    for add in (0, 2):
        kernel(1, [mapped(a, 64, 64), mapped(b, width, 64), out, add])
        assert torch.equal(out, (add + 1) * (a.double() @ b.double().t()).float())


@TYPES
def test_values(dtype: torch.dtype) -> None:
    x = torch.randn(128, device="cuda") * 1000
    rounds, pairs, last = torch.empty_like(x), torch.empty(128, device="cuda", dtype=dtype), x.new_empty(1)
    probe("values", dtype)(1, [x, rounds, pairs, last, 128, -0.375])
    assert torch.equal(rounds, x.to(dtype).float())
    assert torch.equal(pairs, x.to(dtype))
    assert last.item() == -48.0


def _captured(act: Callable[[], None]) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        act()
    graph.replay()


def _elsewhere(act: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failed == []


@pytest.mark.parametrize("way", [_captured, _elsewhere], ids=["graph", "thread"])
def test_a_launch_from_a_graph_and_from_a_thread_of_its_own(
    way: Callable[[Callable[[], None]], None],
) -> None:
    dtype = torch.bfloat16
    x, out = torch.randn(64, device="cuda"), torch.zeros(64, device="cuda")
    pairs, last = torch.zeros(64, device="cuda", dtype=dtype), torch.zeros(1, device="cuda")
    kernel = probe("values", dtype)
    kernel.prepare()
    torch.cuda.synchronize()
    way(lambda: kernel(1, [x, out, pairs, last, 64, 0.5]))
    torch.cuda.synchronize()
    assert torch.equal(out, x.to(dtype).float())
    assert last.item() == 32.0


def test_a_launch_goes_to_torchs_current_stream() -> None:
    stream, kernel = torch.cuda.Stream(), probe("values", torch.bfloat16)
    x, out, pairs = (torch.zeros(128, device="cuda") for _ in range(3))
    last = torch.zeros(1, device="cuda")
    kernel.prepare()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        x.fill_(3.0)
        kernel(1, [x, out, pairs, last, 128, 1.0])
    stream.synchronize()
    assert torch.equal(out, torch.full_like(out, 3.0))
