"""The accept stage of a decode step: what the target says after every node, which drafts stand, where the
run ends.

Knows the sampler and the operations on drafts; neither how drafts were made nor what is done with the result.
Legend: B requests, W width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import DraftTree
from engine.sampling.asked import SamplingClass
from engine.sampling.columns import SamplingColumns
from engine.sampling.rng import PURPOSE_ACCEPT, PURPOSE_RESIDUAL, PURPOSE_TOKEN, uniform
from engine.sampling.sampler import Sampled, Sampler, with_logprobs
from speculative.accept import Accepted, Ledger, Settled
from speculative.ops import DraftOps
from speculative.tree import TreeGeometry


@dataclass(frozen=True)
class Asked:
    """One verify pass to be judged. rows: int64 [B]; start: int32 [B] lengths before the pass. logits:
    [B * W, V], of any precision, after every node of `tree`, whose shape is `shape`."""

    rows: Tensor
    start: Tensor
    tree: DraftTree
    shape: TreeGeometry
    logits: Tensor
    sampling: SamplingClass

    @property
    def width(self) -> int:
        return self.tree.tokens.shape[1]


@dataclass(frozen=True)
class Judged:
    """settled: the accepted runs, cut and entered. target: int32 [B, W] the target's token after each node.
    logprobs: rows of the emitted tokens, see StepOutput."""

    settled: Settled
    target: Tensor
    logprobs: tuple[Tensor, ...]

    @property
    def taken(self) -> Accepted:
        """The accepted run before it is cut."""
        return self.settled.taken

    @property
    def count(self) -> Tensor:
        """int32 [B]: tokens of the cut run."""
        return self.settled.count

    @property
    def finish(self) -> Tensor:
        """int32 [B]: why the run was cut, see Finish."""
        return self.settled.finish


class Acceptance:
    """Both rules emit tokens that follow the target's distribution exactly (docs/exactness.md).

    Sample-and-match, for deterministic drafts: the target draws its own token after every node, and the walk
    follows the child that equals it. The ratio test, for a chain of drafts that come with the distributions
    they were drawn from (speculative.ratio).
    """

    def __init__(
        self, sampler: Sampler, ops: DraftOps, columns: SamplingColumns, ledger: Ledger | None = None
    ) -> None:
        """ledger: where runs are entered; None: nowhere, whoever judges does it."""
        self._sampler = sampler
        self._ops = ops
        self._columns = columns
        self._ledger = ledger

    def __call__(self, asked: Asked) -> Judged:
        """Nothing is read on the host."""
        return self._match(asked) if asked.tree.probs is None else self._ratio(asked)

    def _match(self, asked: Asked) -> Judged:
        target, sampled = self._drawn(asked)
        settled = self._ops.settle(asked.tree, target, asked.start, asked.rows, self._columns, self._ledger)
        return Judged(settled, target, along_path(sampled, settled.taken, asked.width))

    def _drawn(self, asked: Asked) -> tuple[Tensor, Sampled]:
        """The target's token after each node, int32 [B, W]."""
        if asked.sampling.certain:  # neither a coin nor a position matters
            best = self._ops.best(asked.logits)
            sampled = with_logprobs(asked.logits, best, asked.sampling.top_logprobs)
        else:
            sampled = self._sampler(
                asked.logits, *_nodes(asked), self._columns, asked.sampling, _ancestors(asked)
            )
        return sampled.tokens.view(-1, asked.width), sampled

    def _ratio(self, asked: Asked) -> Judged:
        """Node j of a chain is step j of its path: what is emitted is the target's token after each node."""
        assert asked.shape.mask is None, "the ratio test judges chains"
        probs = self._sampler.probabilities(
            asked.logits, *_nodes(asked), self._columns, asked.sampling, _ancestors(asked)
        )
        probs = probs.view(-1, asked.width, probs.shape[-1])
        taken = self._ops.accept_ratio(asked.tree, probs, *self._coins(asked))
        settled = self._ops.enter(taken, asked.tree, asked.start, asked.rows, self._columns, self._ledger)
        sampled = with_logprobs(asked.logits, taken.emitted.view(-1), asked.sampling.top_logprobs)
        return Judged(settled, taken.emitted, logprob_rows(sampled))

    def _coins(self, asked: Asked) -> tuple[Tensor, Tensor]:
        """float64 [B, W] each: for the test of the draft after a node, and for the draw after it.

        Without a draft to refuse, the draw is the target's own and takes its own coin: a request that
        declines drafts gets what plain decoding gives it.
        """
        key = self._columns.key[asked.rows].unsqueeze(1)
        after = asked.start.long().unsqueeze(1) + 1 + asked.shape.depth
        tested = functional.pad(asked.tree.parent[:, 1:] >= 0, (0, 1))
        own, instead = uniform(key, after, PURPOSE_TOKEN), uniform(key, after, PURPOSE_RESIDUAL)
        return uniform(key, after, PURPOSE_ACCEPT), torch.where(tested, instead, own)


def _nodes(asked: Asked) -> tuple[Tensor, Tensor]:
    """(rows, positions) int64 [B * W]: the token after a node of depth d stands at start + d + 1."""
    after = asked.start.long() + 1
    if asked.width == 1:
        return asked.rows, after
    positions = (after.unsqueeze(1) + asked.shape.depth).view(-1)
    return asked.rows.repeat_interleave(asked.width), positions


def _ancestors(asked: Asked) -> Tensor | None:
    return asked.shape.ancestors if asked.sampling.shaped and asked.width > 1 else None


def logprob_rows(sampled: Sampled) -> tuple[Tensor, ...]:
    """(own, best ids, their values), as far as they were asked for."""
    if sampled.logprobs is None:
        return ()
    if sampled.top_ids is None or sampled.top_logprobs is None:
        return (sampled.logprobs,)
    return (sampled.logprobs, sampled.top_ids, sampled.top_logprobs)


def along_path(sampled: Sampled, taken: Accepted, width: int) -> tuple[Tensor, ...]:
    """Logprob rows of the accepted path: emitted token j was drawn at node accept_index[j]."""
    values = logprob_rows(sampled)
    if not values or width == 1:
        return values
    index = taken.accept_index
    base = torch.arange(len(index), device=index.device).unsqueeze(1) * width
    nodes = (base + index.clamp_min(0)).view(-1)
    return tuple(v.index_select(0, nodes) for v in values)
