"""The Triton backend against float64 loops and the torch backend: on a GPU, else in the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Case, build, close, extend, reference, run, verify, windowed
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.torch_sdpa import TorchSDPA
from backends.triton import TritonAttention
from engine.batch import HostLens, Mode

CUDA = torch.cuda.is_available()
SMALL = {"max_context": 128, "heads": 4, "kv_heads": 2}
ON_GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="no CUDA device")])
ON_CPU = pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="Triton is compiled in this process"))
GPU_TYPES = [torch.float32, torch.bfloat16, torch.float16]


def check(case: Case, kv_splits: int = 0) -> None:
    world = build(case)
    real = [b for b, n in enumerate(case.lens) if n is not None for _ in range(case.queries[b])]
    out = run(TritonAttention(TritonAttention.Config(kv_splits), world.context), world)
    assert out.isfinite().all()
    keep = torch.tensor([case.lens[b] is not None for b, n in enumerate(case.queries) for _ in range(n)])
    assert int(keep.sum()) == len(real)
    close(out.cpu()[keep], reference(world)[keep], case.dtype)


@pytest.mark.parametrize("device", [ON_CPU])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(("width", "tree"), [(1, False), (2, False), (5, True), (16, False), (16, True)])
def test_verify(device: str, page_size: int, width: int, tree: bool) -> None:
    check(verify(width, page_size=page_size, tree=tree, device=device, **SMALL))


WINDOWS = pytest.mark.parametrize(("width", "keys"), [(1, 1), (1, 9), (4, 12), (8, 24), (16, 16), (16, 64)])


@pytest.mark.parametrize("device", [ON_CPU])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@WINDOWS
def test_a_window_outside_of_the_pages(device: str, page_size: int, width: int, keys: int) -> None:
    check(windowed(width, keys, page_size=page_size, device=device, **SMALL), kv_splits=keys % 4)


@pytest.mark.parametrize("device", [ON_CPU, ON_GPU])
def test_a_token_sees_itself_though_the_mask_forgets(device: str) -> None:
    """No prefix, an empty mask: the output is the token's own value."""
    case = windowed(2, 6, lens=(0,), kv_heads=6, device=device)
    world = build(case)
    batch = replace(world.batch, tree_mask=torch.zeros(1, 2, 6, dtype=torch.bool, device=device))
    out = run(TritonAttention(TritonAttention.Config(), world.context), replace(world, batch=batch))
    close(out, world.v.flatten(1), case.dtype)


@pytest.mark.parametrize("device", [ON_CPU])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("lens", [(0, 0, 0), (0, 7, 40)])
def test_extend(device: str, page_size: int, lens: tuple[int, ...]) -> None:
    check(extend((3, 1, 20), lens, page_size=page_size, device=device, **SMALL))


@pytest.mark.parametrize("device", [ON_CPU])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (9, 3), (4, 1)])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
def test_shapes(device: str, heads: tuple[int, int], dim: int) -> None:
    shape = {"heads": heads[0], "kv_heads": heads[1], "dim": dim, "device": device, "max_context": 64}
    check(verify(3, tree=True, **shape))
    check(extend((4, 9), (0, 6), **shape))


@pytest.mark.parametrize("device", [ON_CPU])
def test_padded_rows_ride_along(device: str) -> None:
    check(verify(2, lens=(5, None, 17, None), device=device, **SMALL))
    check(windowed(2, 6, lens=(5, None, 17, None), device=device, **SMALL))


@pytest.mark.parametrize("device", [ON_CPU, ON_GPU])
@pytest.mark.parametrize("mode", [*Mode, None])
def test_zero_requests(device: str, mode: Mode | None) -> None:
    """None: with a window."""
    case = Case(mode=mode, lens=(), queries=()) if mode else windowed(2, 6, lens=())
    case = replace(case, device=device)
    world = build(case)
    backend = TritonAttention(TritonAttention.Config(), world.context)
    assert run(backend, world).shape == (0, case.heads * case.dim)


@pytest.mark.skipif(CUDA, reason="Triton is compiled in this process")
@settings(max_examples=12, deadline=None)
@given(
    lens=st.lists(st.integers(0, 70), min_size=1, max_size=3),
    width=st.integers(1, 16),
    page_size=st.sampled_from([1, 16, 64]),
    tree=st.booleans(),
    older=st.none() | st.integers(0, 20),
    slack=st.integers(0, 20),
    seed=st.integers(0, 1000),
)
def test_equals_torch(
    lens: list[int], width: int, page_size: int, tree: bool, older: int | None, slack: int, seed: int
) -> None:
    """older: keys of a window before the pass's own; None for no window."""
    case = verify(width, lens=tuple(lens), page_size=page_size, tree=tree, slack=slack, seed=seed, **SMALL)
    if older is not None:
        case = replace(case, window=width + older, tree=True)
    world = build(case)
    triton = run(TritonAttention(TritonAttention.Config(), world.context), world)
    close(triton, run(TorchSDPA(TorchSDPA.Config(), world.context), world), case.dtype)


@pytest.mark.parametrize("device", [ON_GPU])
@pytest.mark.parametrize("dtype", GPU_TYPES)
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 2), (9, 3), (32, 8), (16, 1)])
def test_gpu_shapes(device: str, dtype: torch.dtype, dim: int, heads: tuple[int, int]) -> None:
    shape = {"heads": heads[0], "kv_heads": heads[1], "dim": dim, "device": device, "dtype": dtype}
    check(verify(1, **shape))
    check(verify(5, tree=True, page_size=1, **shape))
    check(extend((4, 90), (3, 0), page_size=64, **shape))


@pytest.mark.parametrize("device", [ON_GPU])
@pytest.mark.parametrize("dtype", GPU_TYPES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("width", [1, 2, 5, 8, 16])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("kv_splits", [0, 1, 3, 32])
def test_gpu_verify(
    device: str, dtype: torch.dtype, page_size: int, width: int, tree: bool, kv_splits: int
) -> None:
    case = verify(width, page_size=page_size, tree=tree, device=device, dtype=dtype, max_context=1024)
    check(replace(case, lens=(5, 700, None, 0), queries=(width,) * 4, slack=20), kv_splits)


@pytest.mark.parametrize("device", [ON_GPU])
@pytest.mark.parametrize("dtype", GPU_TYPES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("kv_splits", [0, 1, 5])
@WINDOWS
def test_gpu_window(
    device: str, dtype: torch.dtype, page_size: int, kv_splits: int, width: int, keys: int
) -> None:
    case = windowed(width, keys, page_size=page_size, device=device, dtype=dtype, max_context=1024)
    check(replace(case, lens=(5, 700, None, 0), queries=(width,) * 4, slack=20), kv_splits)


@pytest.mark.parametrize("device", [ON_GPU])
@pytest.mark.parametrize("dtype", GPU_TYPES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_gpu_extend(device: str, dtype: torch.dtype, page_size: int) -> None:
    shape = {"page_size": page_size, "device": device, "dtype": dtype, "max_context": 1024}
    check(extend((130, 1, 20, 64), (0, 300, 64, 7), **shape))


def test_facts_are_the_class_attributes() -> None:
    facts = TritonAttention.facts({})
    assert facts.host_lens is HostLens.NONE
    assert facts.device_metadata
    assert facts.tree_mask
    assert facts.max_verify_width == 16
    assert facts.dtypes["cpu"] == ("float32",)
