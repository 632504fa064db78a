"""The page ledger: every page has one owner, and a broken count is reported with who holds what."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from engine.cache.ledger import PageLedger
from engine.cache.none import NoPrefixCache
from engine.cache.radix import RadixCache
from engine.errors import InternalError
from engine.request import Request


def make(total: int = 20, page_size: int = 4, kind: type = RadixCache) -> PageLedger:
    return PageLedger(total, kind(kind.Config(page_size=page_size)))  # type: ignore[attr-defined]


def request(ledger: PageLedger, ids: list[int], name: str = "r") -> Request:
    made = Request(name, ids, SimpleNamespace())  # type: ignore[arg-type]
    made.cache_key = ledger.cache.key(made.known_ids(), made.known - 1)
    return made


def written(r: Request, token: int = 99) -> Request:
    """As after a prefill whose first token is known."""
    r.kv_committed = r.known
    r.output_ids.append(token)
    return r


IDS = list(range(10))  # two whole pages of 4 and a rest


def test_a_request_gets_pages_for_its_tokens() -> None:
    ledger = make()
    r = request(ledger, IDS)
    assert ledger.admit(r, 13, 0)
    assert (len(r.pages), r.shared_pages, ledger.own(r), ledger.available) == (4, 0, 4, 16)
    assert ledger.grow(r, 16) == []
    assert len(ledger.grow(r, 21)) == 2
    ledger.check([r])


def test_admission_leaves_spare_pages_and_changes_nothing_when_it_fails() -> None:
    ledger = make(total=6)
    r = request(ledger, IDS)
    assert not ledger.admit(r, 13, 3)
    assert (r.pages, ledger.available) == ([], 6)
    ledger.check([])
    assert ledger.admit(r, 13, 2)


def test_release_keeps_whole_written_pages_for_the_next() -> None:
    ledger = make()
    r = request(ledger, IDS)
    ledger.admit(r, 13, 0)
    first = r.pages[:2]
    ledger.release(written(r))
    ledger.check([])
    assert (ledger.free, ledger.cache.cached, ledger.available) == (18, 2, 20)
    again = request(ledger, IDS)
    ledger.admit(again, 13, 0)
    assert again.pages[:2] == first
    assert again.shared_pages == 2
    ledger.check([again])


def test_a_running_request_shares_its_prompt() -> None:
    ledger = make()
    r, other = request(ledger, IDS, "a"), request(ledger, IDS, "b")
    ledger.admit(r, 13, 0)
    ledger.share(written(r))
    ledger.admit(other, 13, 0)
    assert other.pages[:2] == r.pages[:2]
    ledger.check([r, other])
    ledger.release(r)
    ledger.check([other])
    assert ledger.cache.evictable == 0, "the other one still uses them"
    ledger.release(other)
    ledger.check([])


def test_duplicates_keep_the_trees_page_and_ours_becomes_free() -> None:
    """Two requests computed the same prompt at once: neither may lose a page that it runs on."""
    ledger = make()
    a, b = request(ledger, IDS, "a"), request(ledger, IDS, "b")
    ledger.admit(a, 13, 0)
    ledger.admit(b, 13, 0)
    kept, own = list(a.pages), list(b.pages)
    ledger.share(written(a))
    ledger.share(written(b))
    assert (a.shared_pages, b.shared_pages, b.pages) == (2, 0, own)
    ledger.check([a, b])
    ledger.release(b)
    ledger.check([a])
    assert ledger.cache.match(b.cache_key)[0] == kept[:2]
    ledger.release(a)
    ledger.check([])


def test_eviction_serves_allocation_but_never_what_is_in_use() -> None:
    ledger = make(total=5)
    old = request(ledger, IDS, "old")
    ledger.admit(old, 13, 0)
    ledger.release(written(old))
    new = request(ledger, [50 + i for i in range(18)], "new")
    assert ledger.admit(new, 20, 0)
    assert ledger.evicted == 2
    assert ledger.cache.cached == 0
    ledger.check([new])
    assert not ledger.admit(request(ledger, IDS, "x"), 4, 0)


def test_without_a_cache_everything_is_free_again() -> None:
    ledger = make(kind=NoPrefixCache)
    r = request(ledger, IDS)
    ledger.admit(r, 13, 0)
    ledger.share(written(r))
    assert r.shared_pages == 0
    ledger.release(r)
    assert ledger.free == 20
    ledger.check([])


def lose_a_page(ledger: PageLedger, r: Request) -> None:
    ledger._free.pop()


def free_a_page_twice(ledger: PageLedger, r: Request) -> None:
    ledger._free.append(ledger._free[0])


def free_a_page_in_use(ledger: PageLedger, r: Request) -> None:
    ledger._free.append(r.pages[-1])


def miscount_the_cache(ledger: PageLedger, r: Request) -> None:
    ledger.cache.cached += 1


def miscount_evictable(ledger: PageLedger, r: Request) -> None:
    ledger.cache.evictable += 1


def forget_a_lock(ledger: PageLedger, r: Request) -> None:
    ledger.cache.unlock(r.cache_node)


def lock_for_nobody(ledger: PageLedger, r: Request) -> None:
    ledger.cache.lock(r.cache_node)


def overstate_what_is_shared(ledger: PageLedger, r: Request) -> None:
    r.shared_pages += 1


@pytest.mark.parametrize(
    "corrupt",
    [
        lose_a_page,
        free_a_page_twice,
        free_a_page_in_use,
        miscount_the_cache,
        miscount_evictable,
        forget_a_lock,
        lock_for_nobody,
        overstate_what_is_shared,
    ],
)
def test_corruption_is_reported_with_its_holders(corrupt) -> None:  # type: ignore[no-untyped-def]
    ledger = make()
    r = request(ledger, IDS, "culprit")
    ledger.admit(r, 13, 0)
    ledger.share(written(r))
    ledger.check([r])
    corrupt(ledger, r)
    with pytest.raises(InternalError, match=r"page accounting.*culprit.*own, \d shared"):
        ledger.check([r])


def test_a_promise_that_cannot_be_kept_is_an_internal_error() -> None:
    ledger = make(total=3)
    r = request(ledger, IDS)
    ledger.admit(r, 12, 0)
    with pytest.raises(InternalError, match="promised"):
        ledger.grow(r, 16)
