"""One engine step on the device: propose, forward, accept, commit, observe. Nothing here reads a device
value.

A plain decode step is a verify step with zero drafts; a prefill chunk is the ragged variant. Knows the parts
it is given by their contracts only.
Legend: B requests, W width, T tokens, E emitting requests, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.acceptance import Acceptance, Asked, logprob_rows
from engine.batch import DraftTree, ForwardBatch, Mode, ScheduledStep, SeqLens
from engine.errors import InternalError
from engine.runner import ForwardResult, ModelRunner
from engine.sampling.draws import draws_of
from engine.sampling.sampler import Sampler
from engine.table import RequestTable
from engine.upload import BatchRows, ChunkInputs, StepInputs
from speculative.accept import Accepted
from speculative.base import Speculator
from speculative.ops import DraftOps, NodeInputs, Standing
from speculative.tree import TreeGeometry
from speculative.views import DraftView, Observed, PrefillSeen


@dataclass(frozen=True)
class StepOutput:
    """Device results of a step. packed: int32 [B, W + 5] = emitted tokens, n_emitted, finish, n_accepted,
    drafted nodes, the drafter's signal.

    logprobs: the token's own and, if asked for, the best k of every emitted position; empty when not asked
    for. observe: what the speculator learns, to be run once the results are on their way. reused: the results
    lie where the next step will write its own.
    """

    packed: Tensor
    logprobs: tuple[Tensor, ...] = ()
    observe: Callable[[], None] | None = None
    reused: bool = False


class Step:
    """The stages of a step (docs/architecture.md), bound to one table, runner, speculator and sampler."""

    def __init__(
        self,
        table: RequestTable,
        runner: ModelRunner,
        speculator: Speculator,
        sampler: Sampler,
        ops: DraftOps,
    ) -> None:
        self._table = table
        self._runner = runner
        self._speculator = speculator
        self._sampler = sampler
        self._ops = ops
        self._accept = Acceptance(sampler, ops, table.columns, table.ledger)
        self._compactor = ops.compactor(runner.pool.layers)

    @property
    def device(self) -> torch.device:
        """Where its tensors lie."""
        return self._table.seq_lens.device

    def run(self, step: ScheduledStep, inputs: StepInputs, host_lens: tuple[int, ...] | None) -> StepOutput:
        """Apply the host's writes, then run the pass. host_lens: exact lengths if some part reads them."""
        self.write(inputs)
        if inputs.chunk is not None:
            return self._extend(step, inputs.batch, inputs.chunk, host_lens)
        return self.decode(step, inputs.batch, host_lens)

    def prepare(self, step: ScheduledStep) -> None:
        """Do now what the first decode step of this size, width and class would take longer for."""
        return None

    def write(self, inputs: StepInputs) -> None:
        """The host's writes to the table: what changes from step to step and is no tensor at a fixed
        place."""
        if inputs.writes is not None:
            self._table.apply(inputs.writes)

    def decode(self, step: ScheduledStep, batch: BatchRows, host_lens: tuple[int, ...] | None) -> StepOutput:
        """A VERIFY pass, the writes done. Of `step` it reads sizes, bounds, width and class; all else lies on
        the device."""
        rows = batch.rows
        start, last = self._ops.opening(rows, self._table.ledger)
        lens = SeqLens(start, step.bounds, host_lens)
        view = self._view(step, batch, lens, last)
        drafted = _as_asked(self._speculator.propose(view), step.width)
        shape = self._ops.geometry(drafted, self._branches(step))
        at = Standing(rows, start, self._table.page_table, self._table.size.page_size)
        tree, nodes = self._ops.present_inputs(drafted, shape, at, self._table.columns.max_drafts)
        forward = self._verify_batch(step, batch, nodes, lens, shape)
        result = self._runner.forward(forward)
        judged = self._accept(Asked(rows, start, tree, shape, result.logits, step.sampling))
        taken = judged.taken
        if self._branches(step):  # a chain's accepted KV lies in front already
            self._compactor(forward.slots.view(-1, step.width), taken.accept_index)
        if step.sampling.shaped:
            self._table.columns.count_outputs(rows, taken.emitted, judged.count)
        seen = _observed(tree, judged.target, taken, result)
        return StepOutput(
            judged.settled.packed, judged.logprobs, partial(self._speculator.observe, view, seen)
        )

    def _branches(self, step: ScheduledStep) -> bool:
        """Whether drafts of this step may branch: a single node cannot."""
        return self._speculator.plan.tree and step.width > 1

    def _view(
        self, step: ScheduledStep, batch: BatchRows, lens: SeqLens, last: Tensor | None = None
    ) -> DraftView:
        table = self._table
        return DraftView(
            table.tokens,
            batch.rows,
            lens,
            table.relay,
            table.page_table,
            table.size.page_size,
            batch.query_start,
            step.width,
            step.resume,
            draws_of(table.columns, batch.rows) if step.sampling.sampled else None,
            last,
        )

    def _verify_batch(
        self, step: ScheduledStep, batch: BatchRows, nodes: NodeInputs, lens: SeqLens, shape: TreeGeometry
    ) -> ForwardBatch:
        return ForwardBatch(
            mode=Mode.VERIFY,
            rows=batch.rows,
            input_ids=nodes.ids,
            positions=nodes.positions,
            slots=nodes.slots,
            seq_lens=lens,
            query_start=batch.query_start,
            query_lens=step.query_lens,
            page_table=self._table.page_table,
            width=step.width,
            tree_mask=shape.mask,
            page_size=self._table.size.page_size,
        )

    def _extend(
        self,
        step: ScheduledStep,
        batch: BatchRows,
        chunk: ChunkInputs,
        host_lens: tuple[int, ...] | None,
    ) -> StepOutput:
        table, rows = self._table, batch.rows
        lens = SeqLens(table.seq_lens[rows], step.bounds, host_lens)
        forward = ForwardBatch(
            mode=Mode.EXTEND,
            rows=rows,
            input_ids=table.tokens[chunk.token_rows, chunk.positions].long(),
            positions=chunk.positions,
            slots=table.slots(chunk.token_rows, chunk.positions),
            seq_lens=lens,
            query_start=batch.query_start,
            query_lens=step.query_lens,
            page_table=table.page_table,
            logit_rows=chunk.last_token,
            page_size=self._table.size.page_size,
        )
        result = self._runner.forward(forward)
        new_lens = lens.device + batch.query_start.diff()
        emitting = rows[chunk.emit_index]
        last = new_lens[chunk.emit_index]
        sampled = self._sampler(result.logits, emitting, last.long(), table.columns, step.sampling, None)
        table.seq_lens[rows] = new_lens
        none = torch.zeros_like(sampled.tokens)
        drawn = Accepted(none.unsqueeze(1), none, sampled.tokens.unsqueeze(1))
        settled = self._ops.enter(drawn, None, last - 1, emitting, table.columns, table.ledger)
        if step.sampling.shaped:
            table.columns.count_outputs(emitting, drawn.emitted, settled.count)
        seen = PrefillSeen(forward, chunk.token_rows, result.hidden, result.aux)
        view = self._view(step, batch, lens)
        return StepOutput(
            settled.packed, logprob_rows(sampled), partial(self._speculator.prefill, view, seen)
        )


def _as_asked(tree: DraftTree, width: int) -> DraftTree:
    """A drafter that ignores view.width would fail far from here."""
    if tree.tokens.shape[1] != width:
        raise InternalError(
            f"the drafter returned {tree.tokens.shape[1]} nodes a request for a step of width {width}: "
            "propose has to follow view.width"
        )
    return tree


def _observed(tree: DraftTree, target: Tensor, taken: Accepted, result: ForwardResult) -> Observed:
    return Observed(
        tree, target, taken.accept_index, taken.n_accepted, taken.emitted, result.hidden, result.aux
    )
