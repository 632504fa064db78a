"""Who owns which page: the free list, the prefix cache, or a request. Every page has exactly one owner.

Moves pages between the three and can prove that none was lost. Knows no policy and no step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from engine.cache.base import CachedNode, PrefixCache
from engine.errors import InternalError
from engine.request import Request


class PageLedger:
    """Pages 1..total (page 0 is padding).

    A request's first `shared_pages` pages belong to the cache and are locked through its `cache_node`; the
    others are its own. It never locks a page that it does not use: one request alone can have the whole pool.
    """

    def __init__(self, total: int, cache: PrefixCache) -> None:
        self.total = total
        self.cache = cache
        self.page_size = cache.page_size
        self.evicted = 0
        self._free = list(range(total, 0, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def available(self) -> int:
        """Pages that can be had at once: free ones, and cached ones that nobody has locked."""
        return len(self._free) + self.cache.evictable

    def pages(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def own(self, request: Request) -> int:
        """Pages that nobody but the request owns."""
        return len(request.pages) - request.shared_pages

    def admit(self, request: Request, tokens: int, spare: int) -> bool:
        """Give a request pages for `tokens` tokens, cached prefix included, if `spare` pages are left over.

        Its lengths then count the cached prefix. Returns whether it succeeded; if not, nothing has changed
        except that the prefix counts as used.
        """
        cached, node = self.cache.match(request.cache_key)
        self.cache.lock(node)
        missing = self.pages(tokens) - len(cached)
        if missing + spare > self.available:
            self.cache.unlock(node)
            return False
        request.cache_node = node
        request.shared_pages = len(cached)
        request.kv_committed = request.bound = len(cached) * self.page_size
        request.pages = cached + self._take(missing)
        return True

    def grow(self, request: Request, tokens: int) -> list[int]:
        """Give a request what it lacks for `tokens` tokens; the caller has looked at `available`."""
        new = self._take(self.pages(tokens) - len(request.pages))
        request.pages += new
        return new

    def share(self, request: Request) -> None:
        """Let others use a request's written pages while it runs.

        Where somebody else was first with a page of the same tokens, the request keeps its own from there on:
        replacing pages of a running row is not safe, and locking both would take the pool twice.
        """
        count = request.kv_committed // self.page_size
        key = self._key(request, count)
        if not key or count <= request.shared_pages or self.cache.peek(key) != request.shared_pages:
            return
        _, node = self.cache.insert(key, request.pages[:count])
        self.cache.lock(node)
        self.cache.unlock(request.cache_node)
        request.cache_node, request.shared_pages = node, count

    def release(self, request: Request) -> None:
        """Take all pages back: whole written ones go to the cache, the rest and duplicates are free."""
        if not request.pages:
            return
        count = request.kv_committed // self.page_size
        kept, _ = self.cache.insert(self._key(request, count), request.pages[:count])
        self._free += reversed(request.pages[request.shared_pages : kept] + request.pages[count:])
        self.cache.unlock(request.cache_node)
        request.pages, request.shared_pages, request.cache_node = [], 0, None

    def forget(self) -> int:
        """Free every cached page that nobody has locked; returns how many. No eviction in the counters'
        sense.
        """
        freed = self.cache.evict(self.cache.evictable)
        self._free += freed
        return len(freed)

    def check(self, holders: Iterable[Request]) -> None:
        """Prove that free + cached + reserved == total and that every page has one owner.

        Raises InternalError with what each request holds.
        """
        holders = list(holders)
        nodes = list(self.cache.walk())
        owned = [page for r in holders for page in r.pages[r.shared_pages :]]
        cached = [page for node in nodes for page in node.pages]
        problems = self._counts(len(owned), len(cached), sum(len(n.pages) for n in nodes if not n.locks))
        seen = sorted([*self._free, *cached, *owned])
        if seen != list(range(1, self.total + 1)):
            problems.append(f"pages lost or owned twice: {_difference(seen, self.total)}")
        held = set(cached)
        problems += [f"{r!r} shares pages that are not cached" for r in holders if not _shares(r, held)]
        problems += _lock_problems(nodes, holders)
        if problems:
            table = "; ".join(f"{r!r}: {self.own(r)} own, {r.shared_pages} shared" for r in holders)
            raise InternalError(f"page accounting: {'; '.join(problems)}. Requests: {table or 'none'}")

    def _counts(self, owned: int, cached: int, unlocked: int) -> list[str]:
        problems = []
        if self.free + self.cache.cached + owned != self.total:
            problems.append(
                f"free {self.free} + cached {self.cache.cached} + reserved {owned} != total {self.total}"
            )
        if cached != self.cache.cached or unlocked != self.cache.evictable:
            problems.append(
                f"the cache counts {self.cache.cached} pages, {self.cache.evictable} evictable, "
                f"and holds {cached}, {unlocked} unlocked"
            )
        return problems

    def _key(self, request: Request, count: int) -> bytes:
        return self.cache.key(request.known_ids(), count * self.page_size)

    def _take(self, count: int) -> list[int]:
        if count <= 0:
            return []
        if count > len(self._free):
            evicted = self.cache.evict(count - len(self._free))
            self.evicted += len(evicted)
            self._free += evicted
        if count > len(self._free):
            raise InternalError(f"{count} pages were promised, {len(self._free)} are left")
        taken = self._free[-count:]
        del self._free[-count:]
        return taken[::-1]


def _shares(request: Request, cached: set[int]) -> bool:
    return cached.issuperset(request.pages[: request.shared_pages])


def _difference(seen: list[int], total: int) -> str:
    missing = sorted(set(range(1, total + 1)) - set(seen))
    twice = sorted({a for a, b in pairwise(seen) if a == b})
    return f"missing {missing[:8]}, twice {twice[:8]}"


def _lock_problems(nodes: list[CachedNode], holders: list[Request]) -> list[str]:
    """A node has to be locked once for every request that uses its pages, and never else."""
    node_of = {page: index for index, node in enumerate(nodes) for page in node.pages}
    used = Counter(
        index
        for request in holders
        for index in {node_of[page] for page in request.pages[: request.shared_pages] if page in node_of}
    )
    return [
        f"a node with pages {node.pages[:4]} has {node.locks} locks and {used[index]} users"
        for index, node in enumerate(nodes)
        if node.pages and node.locks != used[index]
    ]
