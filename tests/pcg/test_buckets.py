"""Captured sizes: those that passes can need, and which of them a pass is padded to."""

from __future__ import annotations

import logging

import pytest

from engine.graphs.capture import CpuCapturer
from engine.metrics import EngineMetrics
from engine.modes import ModeContext
from engine.piecewise import FullPrefill, Piecewise, buckets, largest_pass, size_problems
from engine.prefill_graphs.buckets import CPU_LARGEST, Buckets, automatic


def context(
    *, chunk: int = 2048, running: int = 64, positions: int = 4096, device: str = "cuda"
) -> ModeContext:
    return ModeContext(CpuCapturer(), EngineMetrics(), running, positions, chunk, (1,), device)


@pytest.mark.parametrize("limit", [1, 7, 16, 17, 100, 128, 2048, 2050, 8192, 10_000])
def test_the_automatic_list_ends_with_the_largest_pass_and_pads_little(limit: int) -> None:
    sizes = automatic(limit, "cuda")
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == limit
    chosen = Buckets(sizes)
    for tokens in range(1, limit + 1):
        size = chosen.fit(tokens)
        assert size is not None
        assert size >= tokens
        assert size <= max(sizes[0], 2 * tokens)
        if tokens >= 256:
            assert size - tokens < 128 if tokens <= 2048 else size < 1.13 * tokens


def test_on_the_cpu_it_ends_early() -> None:
    assert automatic(2048, "cpu")[-1] == CPU_LARGEST
    assert automatic(40, "cpu") == (16, 32, 40)


@pytest.mark.parametrize(
    ("asked", "limit", "kept", "dropped"),
    [
        ((16, 64, 256), 64, (16, 64), (256,)),
        ((16, 64, 256), 50, (16, 64), (256,)),  # the next size up holds the largest pass
        ((16, 64, 256), 30, (16,), (64, 256)),  # 64 would pad it beyond twice its tokens
        ((256,), 30, (256,), ()),  # the smallest may
        ((64, 16, 16), 100, (16, 64), ()),
    ],
)
def test_sizes_that_no_pass_needs_are_dropped(
    asked: tuple[int, ...], limit: int, kept: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    found, out = Buckets.within(asked, limit)
    assert (found.sizes, out) == (kept, dropped)


def test_no_pass_is_padded_beyond_twice_its_tokens_but_to_the_smallest_size() -> None:
    sparse = Buckets((16, 256))
    assert [sparse.fit(n) for n in (1, 16, 17, 127, 128, 256, 257)] == [16, 16, None, None, 256, 256, None]


def test_a_context_shorter_than_a_size_drops_it(caplog: pytest.LogCaptureFixture) -> None:
    """B4: the largest pass is that of all rows' contexts, and no longer than a chunk."""
    short = context(positions=64, running=1)
    assert largest_pass(short) == 64
    assert buckets("auto", short).sizes == (16, 32, 64)
    assert largest_pass(context(positions=64, running=3)) == 192
    assert largest_pass(context(chunk=100)) == 100
    with caplog.at_level(logging.WARNING, "syncless"):
        assert buckets((32, 64, 128, 2048), short).sizes == (32, 64)
    assert "not captured: 128, 2048" in caplog.text


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("auto", None),
        ((1, 64), None),
        ("all", "pcg.buckets=all is neither a list of sizes nor auto; use pcg.buckets=auto"),
        ((), "pcg.buckets=[] captures nothing; use pcg=none, or pcg.buckets=auto"),
        ((0, 4), "pcg.buckets: 0 is no size; use sizes from 1 up"),
    ],
)
def test_lists_that_mean_nothing_are_named(asked: str | tuple[int, ...], problem: str | None) -> None:
    assert size_problems("pcg.buckets", asked) == ([] if problem is None else [problem])
    assert Piecewise.check(Piecewise.Config(asked)) == size_problems("pcg.buckets", asked)
    assert FullPrefill.check(FullPrefill.Config(requests=asked)) == size_problems("pcg.requests", asked)
