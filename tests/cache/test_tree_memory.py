"""A tree that was split and emptied holds no memory back: no piece keeps what it was cut from (K12)."""

from __future__ import annotations

import gc
import random
import tracemalloc

import numpy as np
import torch

from engine.cache.radix import RadixCache

SPLITS = 2_000


def filled(count: int) -> RadixCache:
    """Runs of 64 pages, each cut in two by another that leaves it half-way."""
    cache = RadixCache(RadixCache.Config(page_size=1))
    source, page = random.Random(0), iter(range(1 << 30))
    for i in range(count):
        ids = np.array([i, *(source.randrange(1000) for _ in range(63))], dtype=np.int32)
        other = ids.copy()
        other[32:] += 1000
        for one in (ids, other):
            key = cache.key(one, len(one))
            known = cache.peek(key)
            cache.insert(key, [-1] * known + [next(page) for _ in range(len(one) - known)])
    return cache


def test_everything_is_given_back() -> None:
    tracemalloc.start()
    try:
        cache = filled(8)
        cache.evict(cache.cached)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(SPLITS // 500):
            full = filled(500)
            held = tracemalloc.get_traced_memory()[0] - before
            assert full.evictable == full.cached == 500 * 96
            assert len(full.evict(full.cached)) == 500 * 96
            assert held > 500 * 96 * 4, "the measure sees what a full tree holds"
            assert [*full.walk()] == []
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - before < held / 10
    finally:
        tracemalloc.stop()


def test_the_tree_holds_no_tensor() -> None:
    cache = filled(50)
    nodes, seen = [cache._root], 0
    while nodes:
        node = nodes.pop()
        assert type(node.key) is bytes
        assert type(node.pages) is list
        assert not any(isinstance(getattr(node, name), torch.Tensor) for name in node.__slots__)
        nodes += node.children.values()
        seen += 1
    assert seen == 1 + 3 * 50
