"""The prefix cache contract: which pages hold the KV of which token prefix, and which of them are in use.

Host data only: page ids and token ids, never a tensor. Knows no request and no free list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.build import number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CachedNode:
    """What a walk over the cache shows of one node."""

    pages: tuple[int, ...]
    locks: int


class PrefixCache(ABC):
    """Pages of finished prefixes by key. `node` is an opaque handle of a cached prefix.

    A key names whole pages in order, `unit` bytes each; page i of two equal key prefixes holds equal KV.
    cached: pages held. evictable: those of them that nobody has locked.
    """

    @dataclass(frozen=True)
    class Config:
        """page_size: tokens a page. tokens: size of the KV pool. max_context: longest request, answer too.

        "auto" leaves a size to the memory plan.
        """

        page_size: int = number(16, ge=1)
        tokens: int | Literal["auto"] = number("auto", ge=1)
        max_context: int | Literal["auto"] = number("auto", ge=2)

    page_size: int
    unit: int = 0
    cached: int = 0
    evictable: int = 0

    @abstractmethod
    def __init__(self, config: Config, *, successor_keys: bool = False) -> None:
        """successor_keys: position i is keyed by (token i, token i + 1), for draft KV that needs both."""

    @abstractmethod
    def key(self, ids: NDArray[np.int32], positions: int) -> bytes:
        """Key of the whole pages within the first `positions` positions; needs ids[positions] to be known."""

    @abstractmethod
    def peek(self, key: bytes) -> int:
        """How many pages of `key` are cached. Changes nothing, not even what was used last."""

    @abstractmethod
    def match(self, key: bytes) -> tuple[list[int], object]:
        """(cached pages of the longest known prefix of `key`, its node), which counts as a use."""

    @abstractmethod
    def insert(self, key: bytes, pages: list[int]) -> tuple[int, object]:
        """Adopt pages[n:] of `key`, where the first n pages are cached already; returns (n, node of the key).

        The caller keeps pages[:n] that are not the cache's own.
        """

    @abstractmethod
    def lock(self, node: object) -> None:
        """Keep the whole prefix of `node` until the matching unlock."""

    @abstractmethod
    def unlock(self, node: object) -> None:
        """Undo one lock."""

    @abstractmethod
    def evict(self, count: int) -> list[int]:
        """Forget up to `count` unlocked pages and return them."""

    @abstractmethod
    def walk(self) -> Iterator[CachedNode]:
        """Every node, for the accounting check."""
