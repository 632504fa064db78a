"""Which drafts are accepted, and where the accepted run ends: exact walks on the device.

The rule is sample-and-match: `target` holds the token that the target model itself draws after each node,
so a draft is accepted exactly when it equals that token; greedy decoding is the special case of argmax
draws. Knows neither how tokens are drawn nor how drafts are made. Nothing is read on the host.
Legend: B requests, W width (nodes), S stop ids a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import DraftTree, Finish
from speculative.tree import is_child


@dataclass(frozen=True)
class Accepted:
    """accept_index: int32 [B, W] nodes on the accepted path, root first, -1 padded. n_accepted: int32 [B]
    drafts on it. emitted: int32 [B, W] the target's tokens along the path: the first n_accepted + 1 are
    valid."""

    accept_index: Tensor
    n_accepted: Tensor
    emitted: Tensor


@dataclass(frozen=True)
class Ledger:
    """Where runs are entered: tokens int32 [R, C] by table row and position, seq_lens int32 [R] tokens whose
    KV is written. Row 0 is padding: its length stays 0."""

    tokens: Tensor
    seq_lens: Tensor


@dataclass(frozen=True)
class Settled:
    """A step's accepted runs, cut and entered. count, finish: int32 [B] of the cut run. packed: int32 [B,
    W + 5], what the host is told: the emitted tokens, count, finish, drafts accepted before the cut, nodes
    that were really drafted, the drafter's signal."""

    taken: Accepted
    count: Tensor
    finish: Tensor
    packed: Tensor


class EndColumns(Protocol):
    """What `trim` reads of the sampling columns, all by table row R: stop_ids int32 [R, S] (-1 padded),
    min_len and max_len int32 [R]."""

    @property
    def stop_ids(self) -> Tensor: ...
    @property
    def min_len(self) -> Tensor: ...
    @property
    def max_len(self) -> Tensor: ...


def accept(tree: DraftTree, target: Tensor) -> Accepted:
    """Walk every request's tree by the target's own tokens.

    target: int32 [B, W], the target's token after each node. At a node the first child that holds the
    target's token is followed; without one that token is emitted and the walk ends. Absent nodes are never
    entered.
    """
    batch, width = target.shape
    if width == 1:
        zero = torch.zeros(batch, dtype=torch.int32, device=target.device)
        return Accepted(zero.unsqueeze(1), zero, target)
    follow = _followed_child(tree, target)
    here = torch.zeros(batch, 1, dtype=torch.int64, device=target.device)
    path = [here]
    for _ in range(width - 1):
        here = follow.gather(1, here)
        path.append(here)
    nodes = torch.cat(path, dim=1)  # W once the walk has ended
    on_path = nodes < width
    emitted = target.gather(1, nodes.clamp_max(width - 1))
    index = torch.where(on_path, nodes, -1).int()
    return Accepted(index, on_path.sum(1, dtype=torch.int32) - 1, emitted)


def _followed_child(tree: DraftTree, target: Tensor) -> Tensor:
    """int64 [B, W + 1]: the first child of each node that holds the target's token after it, W for none
    (and from W)."""
    width = target.shape[1]
    node = torch.arange(width, device=target.device)
    matches = is_child(tree.parent) & (tree.tokens.unsqueeze(1) == target.unsqueeze(2))  # [B, node, child]
    follow = torch.where(matches, node, width).amin(-1)
    return torch.nn.functional.pad(follow, (0, 1), value=width)


def trim(
    emitted: Tensor, n_emitted: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns
) -> tuple[Tensor, Tensor]:
    """Cut each emitted run at its first stop id or at the request's length; the earliest index wins, stop
    first.

    emitted: int32 [B, W]; n_emitted: int32 [B]; seq_lens: int32 [B] before the pass, so emitted[:, j] takes
    position seq_lens + 1 + j and makes seq_lens + 2 + j known tokens. rows: int64 [B] in `columns`. A stop
    id counts from position min_len on. Returns (n_emitted int32 [B], finish int32 [B]).
    """
    if emitted.shape[1] == 1:
        return n_emitted, _finish_single(emitted, seq_lens, rows, columns)
    last = n_emitted - 1
    at_length = (columns.max_len[rows] - 2 - seq_lens).clamp_min(0)
    at_stop = _first_stop(emitted, columns.min_len[rows] - 1 - seq_lens, columns.stop_ids[rows])
    end = torch.minimum(at_stop, at_length)
    reason = torch.where(at_stop <= at_length, int(Finish.STOP), int(Finish.LENGTH))
    return torch.minimum(end, last) + 1, (reason * (end <= last)).int()


def _finish_single(emitted: Tensor, seq_lens: Tensor, rows: Tensor, columns: EndColumns) -> Tensor:
    """`trim` for a run of one token, in half the operations: this is every step of plain decoding."""
    position = seq_lens + 1
    stopped = (emitted == columns.stop_ids[rows]).any(1) & (position >= columns.min_len[rows])
    full = position >= columns.max_len[rows] - 1
    return torch.where(stopped, int(Finish.STOP), full * int(Finish.LENGTH)).int()


def _first_stop(emitted: Tensor, earliest: Tensor, stop_ids: Tensor) -> Tensor:
    """int32 [B]: index of the first stop id at or after `earliest` (int32 [B]), W where there is none."""
    width = emitted.shape[1]
    step = torch.arange(width, dtype=torch.int32, device=emitted.device)
    stops = (emitted.unsqueeze(-1) == stop_ids.unsqueeze(1)).any(-1) & (step >= earliest.unsqueeze(1))
    return torch.where(stops, step, width).amin(1)


def commit(
    taken: Accepted,
    ends: tuple[Tensor, Tensor],
    tree: DraftTree | None,
    start: Tensor,
    rows: Tensor,
    ledger: Ledger | None,
) -> Settled:
    """Enter cut runs into the ledger, if there is one, and pack what the host is told.

    ends: (count, finish) int32 [B], as from `trim`. start: int32 [B] lengths before the pass; emitted token j
    stands at start + 1 + j. All W tokens are written, those past a run's end are overwritten later. tree
    None: nothing was drafted.
    """
    count, finish = ends
    if ledger is not None:
        steps = torch.arange(1, taken.emitted.shape[1] + 1, device=rows.device)
        at = start.long().unsqueeze(1) + steps
        ledger.tokens[rows.unsqueeze(1), at] = taken.emitted
        ledger.seq_lens[rows] = torch.where(rows > 0, start + count, 0).int()
    zero = torch.zeros_like(count)
    drafted = zero if tree is None or tree.parent.shape[1] == 1 else (tree.parent >= 0).sum(1).int()
    signal = zero if tree is None or tree.signal is None else tree.signal
    tail = torch.stack((count, finish, taken.n_accepted, drafted, signal), dim=1)
    return Settled(taken, count, finish, torch.cat((taken.emitted, tail), dim=1))
