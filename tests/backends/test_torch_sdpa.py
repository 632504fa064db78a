"""The torch backend against float64 loops: modes, page sizes, widths, trees, head counts, padding, poison."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import Case, build, close, extend, reference, run, verify, windowed

from backends.torch_sdpa import TorchSDPA
from engine.batch import HostLens, Mode

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def check(case: Case) -> None:
    world = build(case)
    out = run(TorchSDPA(TorchSDPA.Config(), world.context), world)
    close(out, reference(world), case.dtype)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("width", [1, 2, 5, 16])
@pytest.mark.parametrize("tree", [False, True])
def test_verify(page_size: int, width: int, tree: bool) -> None:
    check(verify(width, page_size=page_size, tree=tree))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(
    ("width", "keys"), [(1, 1), (1, 2), (1, 9), (4, 4), (4, 12), (8, 24), (16, 16), (16, 64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_outside_of_the_pages(page_size: int, width: int, keys: int, dtype: torch.dtype) -> None:
    check(windowed(width, keys, page_size=page_size, dtype=dtype))


@pytest.mark.parametrize("keys", [2, 6])
def test_a_token_sees_itself_though_the_mask_forgets(keys: int) -> None:
    """No prefix, an empty mask: the output is the token's own value."""
    case = windowed(2, keys, lens=(0, 5), kv_heads=6)
    world = build(case)
    batch = replace(world.batch, tree_mask=torch.zeros(2, 2, keys, dtype=torch.bool))
    out = run(TorchSDPA(TorchSDPA.Config(), world.context), replace(world, batch=batch))
    close(out[:2], world.v[:2].flatten(1), case.dtype)
    close(out, reference(replace(world, batch=batch)), case.dtype)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("lens", [(0, 0, 0), (0, 7, 40), (33, 16, 1)])
def test_extend(page_size: int, lens: tuple[int, ...]) -> None:
    check(extend((3, 1, 20), lens, page_size=page_size))


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (8, 2), (9, 3)])
@pytest.mark.parametrize("dim", [32, 64, 80, 128])
@pytest.mark.parametrize("case", [verify(1), verify(5, tree=True), extend((4, 9), (0, 6))])
def test_shapes(heads: tuple[int, int], dim: int, case: Case) -> None:
    check(Case(**{**vars(case), "heads": heads[0], "kv_heads": heads[1], "dim": dim}))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [verify(1), verify(5), extend((4, 9), (0, 6))])
def test_dtypes(dtype: torch.dtype, case: Case) -> None:
    check(Case(**{**vars(case), "dtype": dtype}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "case", [verify(1), verify(5, tree=True, page_size=1), extend((4, 9), (0, 6)), windowed(4, 12)]
)
def test_gpu(dtype: torch.dtype, case: Case) -> None:
    check(Case(**{**vars(case), "dtype": dtype, "device": "cuda"}))


@pytest.mark.parametrize("slack", [0, 1, 60, 300])
def test_bounds_are_only_upper_bounds(slack: int) -> None:
    """Also past the end of the page table: 300 above the length lies outside a 256-token row."""
    check(verify(2, slack=slack))
    check(windowed(2, 6, slack=slack))
    check(extend((3, 2, 1), (4, 0, 9), slack=min(slack, 60)))


def test_padded_rows_ride_along() -> None:
    case = verify(2, lens=(5, None, 17, None))
    world = build(case)
    out = run(TorchSDPA(TorchSDPA.Config(), world.context), world)
    assert out.isfinite().all()
    real = torch.tensor([0, 1, 4, 5])
    close(out[real], reference(world)[real], case.dtype)


ZERO = [*(Case(mode=mode, lens=(), queries=()) for mode in Mode), windowed(2, 6, lens=())]


@pytest.mark.parametrize("case", ZERO, ids=["extend", "verify", "idle", "window"])
def test_zero_requests(case: Case) -> None:
    world = build(case)
    backend = TorchSDPA(TorchSDPA.Config(), world.context)
    assert run(backend, world).shape == (0, case.heads * case.dim)


def test_a_pass_leaves_nothing_behind_for_the_next() -> None:
    """The metadata of a longer pass, of another mode, must not leak into the next."""
    cases = [
        verify(5, tree=True),
        windowed(3, 7),
        verify(2),
        windowed(1, 4),
        extend((4, 9), (0, 6)),
        verify(1, lens=(3,)),
        extend((2,), (0,)),
    ]
    worlds = [build(c) for c in cases]
    backend = TorchSDPA(TorchSDPA.Config(), worlds[0].context)
    for world in worlds:
        close(run(backend, world), reference(world), world.case.dtype)


def test_facts_are_the_class_attributes() -> None:
    facts = TorchSDPA.facts({})
    assert facts.host_lens is HostLens.BOUND
    assert facts.tree_mask
    assert not facts.device_metadata
    assert facts.page_sizes is None
