"""A radix tree over whole pages: requests that begin alike share the pages of what they have in common.

Holds page ids and key bytes, no tensors, so splitting and evicting nodes moves nothing on a device.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.base import CachedNode, PrefixCache
from engine.errors import InternalError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Node:
    """An edge of the tree with the pages on it. locks: holders of it or of anything below it."""

    __slots__ = ("children", "key", "locks", "pages", "parent", "used")

    def __init__(self, key: bytes, pages: list[int], parent: _Node | None) -> None:
        self.key = key
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.locks = 0
        self.used = 0


class RadixCache(PrefixCache):
    """The tree of RadixAttention (Zheng et al. 2024, SGLang, sec. 3) over whole pages.

    The least recently used leaf is evicted first, from its end: a long prefix shrinks instead of vanishing.
    """

    def __init__(self, config: PrefixCache.Config, *, successor_keys: bool = False) -> None:
        self.page_size = config.page_size
        self.unit = 4 * config.page_size * (2 if successor_keys else 1)
        self._successor_keys = successor_keys
        self._clock = 0
        self._offers = 0
        self._size = 0  # nodes, root excluded
        self._root = _Node(b"", [], None)
        # heap of (used, number of the offer, node); stale once the node was used, locked or extended
        self._leaves: list[tuple[int, int, _Node]] = []

    def key(self, ids: NDArray[np.int32], positions: int) -> bytes:
        count = positions // self.page_size * self.page_size
        if not self._successor_keys:
            return ids[:count].tobytes()
        return np.stack((ids[:count], ids[1 : count + 1]), axis=1).tobytes()

    def peek(self, key: bytes) -> int:
        return self._find(key)[2]

    def match(self, key: bytes) -> tuple[list[int], object]:
        node, within, _ = self._find(key)
        node = self._split(node, within)
        self._use(node)
        pages: list[int] = []
        for part in reversed(list(self._path(node))):
            pages += part.pages
        return pages, node

    def insert(self, key: bytes, pages: list[int]) -> tuple[int, object]:
        node, within, known = self._find(key)
        node = self._split(node, within)
        if known < len(pages):
            node = self._add(node, key[known * self.unit :], pages[known:])
        self._use(node)
        return known, node

    def lock(self, node: object) -> None:
        for part in self._path(node):
            if not part.locks:
                self.evictable -= len(part.pages)
            part.locks += 1

    def unlock(self, node: object) -> None:
        for part in self._path(node):
            if not part.locks:
                raise InternalError("a prefix was unlocked more often than it was locked")
            part.locks -= 1
            if not part.locks:
                self.evictable += len(part.pages)
                self._offer(part)

    def evict(self, count: int) -> list[int]:
        freed: list[int] = []
        while len(freed) < count and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if used == node.used and self._is_free_leaf(node):
                freed += self._shorten(node, count - len(freed))
                self._offer(node if node.pages else self._remove(node))
        self.cached -= len(freed)
        self.evictable -= len(freed)
        return freed

    def walk(self) -> Iterator[CachedNode]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield CachedNode(tuple(node.pages), node.locks)
            stack += node.children.values()

    def _find(self, key: bytes) -> tuple[_Node, int, int]:
        """(last node that `key` enters, pages matched within it, pages matched in all)."""
        node, at, unit = self._root, 0, self.unit
        while at < len(key):
            child = node.children.get(key[at : at + unit])
            if child is None:
                break
            if not key.startswith(child.key, at):
                within = common_pages(child.key, key[at:], unit)
                return child, within, at // unit + within
            node = child
            at += len(child.key)
        return node, len(node.pages), at // unit

    def _split(self, node: _Node, within: int) -> _Node:
        """The node that ends after `within` pages of `node`, which stays the lower part: handles hold."""
        if within == len(node.pages):
            return node
        assert node.parent is not None
        at = within * self.unit
        upper = self._new(node.key[:at], node.pages[:within], node.parent)
        upper.locks, upper.used = node.locks, node.used
        node.key, node.pages, node.parent = node.key[at:], node.pages[within:], upper
        upper.children[node.key[: self.unit]] = node
        return upper

    def _add(self, parent: _Node, key: bytes, pages: list[int]) -> _Node:
        self.cached += len(pages)
        self.evictable += len(pages)
        return self._new(key, pages, parent)

    def _new(self, key: bytes, pages: list[int], parent: _Node) -> _Node:
        self._size += 1
        node = _Node(key, pages, parent)
        parent.children[key[: self.unit]] = node
        return node

    def _use(self, node: _Node) -> None:
        self._clock += 1
        for part in self._path(node):
            part.used = self._clock
        self._offer(node)

    def _path(self, node: object) -> Iterator[_Node]:
        """`node` and its ancestors, without the root."""
        assert isinstance(node, _Node)
        part: _Node | None = node
        while part is not None and part is not self._root:
            yield part
            part = part.parent

    def _is_free_leaf(self, node: _Node) -> bool:
        return not node.children and not node.locks and bool(node.pages)

    def _offer(self, node: _Node) -> None:
        """Make `node` a candidate for eviction if it is an unlocked leaf."""
        if not self._is_free_leaf(node):
            return
        self._offers += 1
        heapq.heappush(self._leaves, (node.used, self._offers, node))
        if len(self._leaves) > 64 + 4 * self._size:  # mostly stale entries
            fresh = {n: (u, i) for u, i, n in self._leaves if u == n.used and self._is_free_leaf(n)}
            self._leaves = [(u, i, n) for n, (u, i) in fresh.items()]
            heapq.heapify(self._leaves)

    def _shorten(self, leaf: _Node, count: int) -> list[int]:
        keep = max(0, len(leaf.pages) - count)
        gone = leaf.pages[keep:]
        if keep:
            leaf.key = leaf.key[: keep * self.unit]
        leaf.pages = leaf.pages[:keep]
        return gone

    def _remove(self, leaf: _Node) -> _Node:
        """Take an emptied leaf out; returns its parent."""
        assert leaf.parent is not None
        del leaf.parent.children[leaf.key[: self.unit]]
        self._size -= 1
        return leaf.parent


def common_pages(a: bytes, b: bytes, unit: int) -> int:
    """Whole pages of `unit` bytes that two keys share at their beginning."""
    size = min(len(a), len(b)) // unit * unit
    if a[:size] == b[:size]:
        return size // unit
    differs = np.frombuffer(a, np.int32, size // 4) != np.frombuffer(b, np.int32, size // 4)
    return int(differs.argmax()) * 4 // unit
