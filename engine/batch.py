"""The values that pass between scheduler, step, model and backends: plain frozen data.

A leaf of the import graph: every package may import it, it imports leaves only and not torch.
Legend: B requests in the batch, T tokens in the pass, W width (drafts + 1), R table rows, P pages a row,
V vocabulary, H hidden size.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from engine.errors import InternalError
from engine.sampling.asked import SamplingClass, SamplingRow

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Mode(enum.Enum):
    """What a forward pass does. A decode step is a VERIFY of width 1."""

    EXTEND = "extend"  # ragged: each request brings its own number of tokens (prefill chunks)
    VERIFY = "verify"  # static: W tokens a request, chain or tree
    IDLE = "idle"  # zero requests; must still work


class HostLens(enum.Enum):
    """What a part reads of the sequence lengths on the host."""

    NONE = "none"  # nothing: the kernels read the device tensor
    BOUND = "bound"  # the allocator's upper bound, free
    EXACT = "exact"  # the true values: a host mirror has to be kept


@dataclass(frozen=True)
class SeqLens:
    """Tokens whose KV is written, before the pass at hand. Never counts the token being computed.

    device: int32 [B]. bound: an upper bound of each, known to the host because the allocator reserved that
    many slots. host: the exact mirror, present only when some injected part declared that it reads it.
    """

    device: Tensor
    bound: tuple[int, ...]
    host: tuple[int, ...] | None = None

    @cached_property
    def max_bound(self) -> int:
        return max(self.bound, default=0)

    def exact(self, asker: str) -> tuple[int, ...]:
        """The exact lengths; `asker` must have declared HostLens.EXACT, else the mirror is absent."""
        if self.host is None:
            raise InternalError(
                f"{asker} asked for exact host lengths, but no injected part declares that it reads them"
            )
        return self.host


def kv_slots(page_table: Tensor, page_size: int, rows: Tensor, positions: Tensor) -> Tensor:
    """int64: KV slots of `positions` int64 in `rows` int64, which must broadcast. page_table: int32 [R,
    P]."""
    if page_size == 1:
        return page_table[rows, positions].long()
    page = page_table[rows, positions // page_size].long()
    return page * page_size + positions % page_size


@dataclass(frozen=True)
class ForwardBatch:
    """One forward pass over the device rows of B requests. Built by the step, changed by nobody.

    Every query token attends to its request's first `seq_lens` KV entries, plus, among the new tokens of the
    pass, those before and including itself (chain, extend) or those that `tree_mask` allows (tree).

    Tree drafting (VERIFY only) gives `window_slots`: the slots of the K >= W keys of the pass's window where
    they do not lie under the page table from seq_len onwards. Then `tree_mask` is bool [B, W, K] over these
    keys, required; the last W columns are the pass's own tokens, `slots` equals window_slots[:, K - W:].
    """

    mode: Mode
    rows: Tensor  # int64 [B] rows of the request table; row 0 is padding
    input_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T] RoPE positions (tree: seq_len + depth)
    slots: Tensor  # int64 [T] where each token's KV goes: page * page_size + offset
    seq_lens: SeqLens  # [B]
    query_start: Tensor  # int32 [B + 1] prefix sums of query_lens: token range of each request in T
    query_lens: tuple[int, ...]  # [B] new tokens of each request; VERIFY: (W,) * B
    page_table: Tensor  # int32 [R, P] of the whole table; index with rows
    width: int = 0  # W for VERIFY, else 0
    tree_mask: Tensor | None = None  # bool [B, W, W], [b, i, j]: node i sees node j; None: causal
    logit_rows: Tensor | None = None  # int64 [N] rows of T that the head runs on; None: all T
    page_size: int = 1  # of the pool
    window_slots: Tensor | None = None  # int64 [B, K], see above; None: the window is the pass's own tokens
    planned: bool = False  # attention prepared this pass outside of the graph that it runs in

    @property
    def size(self) -> int:
        return len(self.query_lens)

    @cached_property
    def max_query(self) -> int:
        return max(self.query_lens, default=0)


ABSENT = -2  # parent of a node that does not exist: never visited
ROOT = -1  # parent of node 0


@dataclass(frozen=True)
class DraftTree:
    """Drafts in canonical form: node 0 is the root (the last known token), parents come before children.

    tokens: int32 [B, W]. parent: int32 [B, W] node index; ROOT for node 0, ABSENT for a missing node. signal:
    int32 [B] what the drafter tells its width policy on the host, None for nothing. probs: fp32 [B, W - 1, V]
    the distribution that each sampled draft of a chain was drawn from, None for deterministic drafts.
    """

    tokens: Tensor
    parent: Tensor
    signal: Tensor | None = None
    probs: Tensor | None = None


class Finish(enum.IntEnum):
    """Why a request ended; the device writes STOP and LENGTH, the host the others."""

    NONE = 0
    STOP = 1  # a stop id or the end-of-sequence id
    LENGTH = 2  # max_tokens, or the context is full
    STOP_STRING = 3
    CANCELLED = 4
    ERROR = 5


@dataclass(frozen=True)
class NewRow:
    """A request that enters the table before a step: its known tokens and its sampling parameters.

    tokens: int32 [n] prompt, then what it had already generated (after a retraction). seq_len: tokens whose
    KV the prefix cache already holds. sampling: see engine.sampling.asked.SamplingRow.
    """

    row: int
    tokens: np.ndarray
    seq_len: int
    prompt_len: int
    sampling: SamplingRow


@dataclass(frozen=True)
class ScheduledStep:
    """What the scheduler decided for one step; host data only.

    bounds: upper bound of each row's seq_len before the pass (exact for EXTEND). emits: whether the row draws
    tokens in this step (VERIFY: all; EXTEND: its last chunk). new_rows and new_pages are written to the
    table, stream-ordered, before the pass; new_pages holds (row, index in the row's page table, page id).
    """

    step_id: int
    mode: Mode
    rows: tuple[int, ...]
    bounds: tuple[int, ...]
    query_lens: tuple[int, ...]
    emits: tuple[bool, ...]
    width: int = 0
    resume: bool = False  # see speculative.width.WidthChoice
    new_rows: tuple[NewRow, ...] = ()
    new_pages: tuple[tuple[int, int, int], ...] = ()
    sampling: SamplingClass = field(default_factory=SamplingClass)


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probability of one emitted token under the model's unfiltered distribution, and the best
    k.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class StepResult:
    """What a completed step tells the host; one entry a row of its ScheduledStep, in order.

    tokens: the emitted run, already trimmed on the device by stop ids and max_len (empty where emits is
    False). finish: Finish.NONE, STOP or LENGTH. accepted: drafts accepted before trimming. drafted:
    nodes that were really drafted. signal: DraftTree.signal, 0 where there is none.
    """

    step_id: int
    tokens: list[list[int]]
    finish: list[int]
    accepted: list[int]
    drafted: list[int]
    signal: list[int]
    logprobs: list[list[TokenLogprob]] | None = None


@dataclass(frozen=True)
class KVGroup:
    """Layers that share one kind of per-token buffer: `heads` x `head_dim` each for k and v."""

    layers: int
    heads: int
    head_dim: int


@dataclass(frozen=True)
class KVLayout:
    """What a model keeps per token. One group now; latent (MLA) and window groups fit the same shape."""

    groups: tuple[KVGroup, ...]
    dtype: str  # "float32", "bfloat16", ...

    def bytes_per_token(self) -> int:
        size = {"float32": 4, "bfloat16": 2, "float16": 2}[self.dtype]
        return sum(2 * g.layers * g.heads * g.head_dim * size for g in self.groups)


@dataclass(frozen=True)
class LayerKV:
    """One layer's part of the pool. k and v: [slots, kv_heads, head_dim]; page 0 is padding."""

    index: int
    k: Tensor
    v: Tensor
