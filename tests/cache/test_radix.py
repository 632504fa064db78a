"""The radix tree against a model that stores every prefix in a dictionary."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.none import NoPrefixCache
from engine.cache.radix import RadixCache, common_pages
from engine.errors import InternalError

PAGE_SIZES = (1, 2, 16)


def make(page_size: int = 2, successor: bool = False) -> RadixCache:
    return RadixCache(RadixCache.Config(page_size=page_size), successor_keys=successor)


def key(cache: RadixCache, ids: list[int]) -> bytes:
    return cache.key(np.array(ids, dtype=np.int32), len(ids))


class Model:
    """page key prefix -> page id, and how many locks hold it."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        self.pages: dict[bytes, int] = {}
        self.locks: dict[bytes, int] = {}

    def prefixes(self, key: bytes) -> list[bytes]:
        return [key[:end] for end in range(self.unit, len(key) + 1, self.unit)]

    def known(self, key: bytes) -> list[bytes]:
        out = []
        for prefix in self.prefixes(key):
            if prefix not in self.pages:
                break
            out.append(prefix)
        return out

    def lock(self, key: bytes, by: int) -> None:
        for prefix in self.prefixes(key):
            self.locks[prefix] = self.locks.get(prefix, 0) + by


def check_counters(cache: RadixCache, model: Model) -> None:
    nodes = list(cache.walk())
    pages = [page for node in nodes for page in node.pages]
    assert len(pages) == len(set(pages)), "a page in two nodes"
    assert set(pages) == set(model.pages.values())
    locked = {model.pages[prefix] for prefix, count in model.locks.items() if count}
    assert {page for node in nodes if node.locks for page in node.pages} == locked
    assert cache.cached == len(pages)
    assert cache.evictable == len(pages) - len(locked)


# tokens of 0 and 1 only, so that prefixes collide often
SEQUENCES = st.lists(st.integers(0, 1), max_size=12)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "hold", "drop", "evict", "peek"]), SEQUENCES),
    max_size=40,
)


@settings(max_examples=250, deadline=None)
@given(OPERATIONS, st.sampled_from(PAGE_SIZES), st.booleans())
def test_tree_equals_a_dictionary_of_prefixes(
    operations: list[tuple[str, list[int]]], page_size: int, successor: bool
) -> None:
    cache = make(page_size, successor)
    model, fresh = Model(cache.unit), iter(range(1, 100_000))
    held: list[tuple[bytes, object]] = []
    for name, letters in operations:
        ids = np.repeat(np.array(letters, dtype=np.int32), max(1, page_size // 2))
        wanted = cache.key(ids, max(0, len(ids) - 1))
        if name == "insert":
            insert(cache, model, wanted, fresh)
        elif name == "hold":
            pages, node = cache.match(wanted)
            assert pages == [model.pages[p] for p in model.known(wanted)]
            cache.lock(node)
            held.append((wanted[: len(pages) * cache.unit], node))
            model.lock(held[-1][0], 1)
        elif name == "drop" and held:
            prefix, node = held.pop(len(letters) % len(held))
            cache.unlock(node)
            model.lock(prefix, -1)
        elif name == "evict":
            evict(cache, model, len(letters))
        assert cache.peek(wanted) == len(model.known(wanted))
        check_counters(cache, model)


def insert(cache: RadixCache, model: Model, wanted: bytes, fresh) -> None:  # type: ignore[no-untyped-def]
    prefixes = model.prefixes(wanted)
    pages = [next(fresh) for _ in prefixes]
    known, node = cache.insert(wanted, pages)
    assert known == len(model.known(wanted))
    for prefix, page in list(zip(prefixes, pages, strict=True))[known:]:
        model.pages[prefix] = page
    matched, again = cache.match(wanted)
    assert len(matched) == len(prefixes)
    assert again is node


def evict(cache: RadixCache, model: Model, count: int) -> None:
    before = cache.evictable
    gone = set(cache.evict(count))
    assert len(gone) == min(count, before)
    locked = {model.pages[p] for p, n in model.locks.items() if n}
    assert not gone & locked, "a locked page was evicted"
    model.pages = {p: page for p, page in model.pages.items() if page not in gone}
    for prefix in model.pages:  # whoever is left still has all its ancestors
        assert prefix[: -cache.unit] == b"" or prefix[: -cache.unit] in model.pages


def test_least_recently_used_goes_first_and_from_its_end() -> None:
    cache = make(1)
    cache.insert(key(cache, [1, 2, 3]), [11, 12, 13])
    cache.insert(key(cache, [4, 5]), [14, 15])
    cache.match(key(cache, [1, 2, 3]))
    assert cache.evict(1) == [15]
    assert cache.evict(2) == [14, 13]
    assert cache.peek(key(cache, [1, 2, 3])) == 2


def test_a_shared_stem_outlives_its_branches() -> None:
    cache = make(1)
    cache.insert(key(cache, [1, 2, 3]), [11, 12, 13])
    cache.insert(key(cache, [1, 2, 4]), [11, 12, 14])
    assert sorted(cache.evict(2)) == [13, 14]
    assert cache.evict(5) == [11, 12]
    assert (cache.cached, cache.evictable) == (0, 0)


def test_split_keeps_handles_and_their_locks() -> None:
    cache = make(1)
    _, long = cache.insert(key(cache, [1, 2, 3, 4]), [11, 12, 13, 14])
    cache.lock(long)
    pages, short = cache.match(key(cache, [1, 2, 9]))  # splits the locked node
    assert pages == [11, 12]
    cache.lock(short)
    cache.unlock(long)
    assert cache.evict(9) == [13, 14]
    cache.unlock(short)
    assert cache.evict(9) == [11, 12]


def test_peek_is_no_use_and_splits_nothing() -> None:
    cache = make(1)
    cache.insert(key(cache, [1, 2, 3]), [11, 12, 13])
    cache.insert(key(cache, [7]), [17])
    before = list(cache.walk())
    assert cache.peek(key(cache, [1, 2])) == 2
    assert list(cache.walk()) == before
    assert cache.evict(1) == [13]


def test_the_candidate_heap_stays_small() -> None:
    cache = make(1)
    cache.insert(key(cache, [1, 2]), [1, 2])
    for _ in range(10_000):
        cache.match(key(cache, [1, 2]))
    assert len(cache._leaves) < 100
    assert cache.evict(2) == [1, 2]


def test_unlocking_too_often_is_an_internal_error() -> None:
    cache = make(1)
    _, node = cache.insert(key(cache, [1]), [1])
    with pytest.raises(InternalError, match="unlocked more often"):
        cache.unlock(node)


@pytest.mark.parametrize("successor", [False, True])
def test_successor_keys_separate_a_page_by_the_token_after_it(successor: bool) -> None:
    """Draft KV at position i depends on token i + 1: another token after a page, another page."""
    cache = make(2, successor)
    a = cache.key(np.array([1, 2, 3, 4, 5], dtype=np.int32), 4)
    b = cache.key(np.array([1, 2, 3, 4, 6], dtype=np.int32), 4)
    cache.insert(a, [1, 2])
    assert cache.peek(b) == (1 if successor else 2)


def test_keys_name_whole_pages_only() -> None:
    cache = make(16)
    ids = np.arange(40, dtype=np.int32)
    assert len(cache.key(ids, 39)) == 2 * cache.unit
    assert cache.key(ids, 15) == b""


@pytest.mark.parametrize("n", [0, 1, 5, 7, 8])
def test_common_pages(n: int) -> None:
    a = np.arange(8, dtype=np.int32)
    b = a.copy()
    b[n:] += 100
    assert common_pages(a.tobytes(), b.tobytes(), 8) == n // 2


def test_none_shares_nothing() -> None:
    cache = NoPrefixCache(NoPrefixCache.Config(page_size=2))
    assert cache.key(np.arange(8, dtype=np.int32), 8) == b""
    assert cache.match(b"") == ([], None)
    assert cache.insert(b"", [1, 2]) == (2, None)
    assert (cache.cached, cache.evictable, cache.evict(3), list(cache.walk())) == (0, 0, [], [])


def test_config_fields() -> None:
    assert [f.name for f in dataclasses.fields(RadixCache.Config)] == ["page_size", "tokens", "max_context"]
