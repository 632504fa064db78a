"""The null object of the prefix cache: nothing is shared, every page returns to the free list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.cache.base import CachedNode, PrefixCache

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class NoPrefixCache(PrefixCache):
    """Knows no prefix and adopts no page."""

    def __init__(self, config: PrefixCache.Config, *, successor_keys: bool = False) -> None:
        self.page_size = config.page_size

    def key(self, ids: NDArray[np.int32], positions: int) -> bytes:
        return b""

    def peek(self, key: bytes) -> int:
        return 0

    def match(self, key: bytes) -> tuple[list[int], object]:
        return [], None

    def insert(self, key: bytes, pages: list[int]) -> tuple[int, object]:
        return len(pages), None

    def lock(self, node: object) -> None:
        return None

    def unlock(self, node: object) -> None:
        return None

    def evict(self, count: int) -> list[int]:
        return []

    def walk(self) -> Iterator[CachedNode]:
        return iter(())
