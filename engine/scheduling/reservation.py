"""How many tokens a request must own pages for: the one count that admission, growth and retraction share.

Knows lengths and widths only, no pages and no owner of any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.request import Request


@dataclass(frozen=True)
class Reservation:
    """width: tokens of a decode step. draft_slots: KV slots that a chain draft writes ahead."""

    width: int
    draft_slots: int = 0

    @property
    def need(self) -> int:
        """Tokens past the bound that a decode step may write."""
        return max(self.width, self.draft_slots)

    def worst(self, max_len: int) -> int:
        """Most tokens a request that ends at `max_len` known tokens ever has to own pages for.

        A decode step is launched while at least 2 tokens are missing, with one step in flight, or 1, with
        none: so its bound is at most max_len - 3 + width.
        """
        return max_len - 3 + self.width + self.need

    def admission(self, request: Request) -> int:
        """To own before its prefill: the known tokens and its first decode step, if it will have one."""
        known = request.known
        return known if known + 1 >= request.max_len else known + self.need

    def ahead(self, request: Request, tokens: int) -> int:
        """To own after about `tokens` more tokens."""
        return min(max(request.bound, request.prefill_end) + self.need + tokens, request.worst)
