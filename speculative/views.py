"""What a drafter may read on the device: before it drafts, after its drafts were verified, after a prefill.

Plain frozen data; knows no algorithm. Importable without torch.
Legend: B requests, W width (drafts + 1), T tokens of a pass, R table rows, C positions a row, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.batch import DraftTree, ForwardBatch, SeqLens, kv_slots

if TYPE_CHECKING:
    from torch import Tensor


class DraftDraws(Protocol):
    """What a drafter needs to draw its drafts at the requests' temperatures, for the B rows of a view.

    A coin is a function of the request's seed and the position alone, independent of all coins that judge
    drafts.
    """

    def temperature(self) -> Tensor:
        """fp32 [B]; 0: greedy, whose drafts must be certain."""

    def coins(self, positions: Tensor) -> Tensor:
        """float64 [B] in (0, 1), for the drafts that would stand at `positions`, int64 [B]."""


@dataclass(frozen=True)
class DraftView:
    """What a drafter may read on the device in one step.

    tokens: int32 [R, C] (known tokens of row r: seq_lens[r] + 1, once a prefill is complete). rows: int64
    [B]. seq_lens: of these rows, before the pass. relay: its own declared fields, whole tables. page_table:
    int32 [R, P]. query_start: int32 [B + 1] of the target's pass. width: W of this step (1: no drafts wanted,
    0: a prefill chunk). resume: some row was last decoded without drafts. draws: for sampled drafts; None
    when every request of the step is greedy. last: int32 [B] the last known tokens, where they were gathered
    already.
    """

    tokens: Tensor
    rows: Tensor
    seq_lens: SeqLens
    relay: dict[str, Tensor]
    page_table: Tensor
    page_size: int
    query_start: Tensor
    width: int = 1
    resume: bool = False
    draws: DraftDraws | None = None
    last: Tensor | None = None

    def root(self) -> Tensor:
        """int32 [B]: the last known token of each row."""
        if self.last is not None:
            return self.last
        return self.tokens[self.rows, self.seq_lens.device.long()]

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """int64: KV slots of `positions` int64 in `rows` int64, which must broadcast."""
        return kv_slots(self.page_table, self.page_size, rows, positions)


@dataclass(frozen=True)
class Observed:
    """What the verify pass showed.

    tree: what was drafted. target: int32 [B, W] the target's token after each node. accept_index: int32 [B,
    W] nodes on the accepted path, root first, -1 padded. n_accepted: int32 [B]. emitted: int32 [B, W] the
    target's tokens along the path, the first n_accepted + 1 valid. hidden: [B * W, H] final normalised
    states; aux: [B * W, n * H] inputs of the collected layers, None where none are.
    """

    tree: DraftTree
    target: Tensor
    accept_index: Tensor
    n_accepted: Tensor
    emitted: Tensor
    hidden: Tensor
    aux: Tensor | None


@dataclass(frozen=True)
class PrefillSeen:
    """A prefill chunk of the target. forward: its batch, whose slots and lengths the draft shares.
    token_rows: int64 [T] table row of each token. hidden, aux: as in Observed, [T, ...]. The token after each
    position is known by then: tokens[token_rows, positions + 1]."""

    forward: ForwardBatch
    token_rows: Tensor
    hidden: Tensor
    aux: Tensor | None
