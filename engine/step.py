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

from engine.batch import DraftTree, ForwardBatch, Mode, ScheduledStep, SeqLens
from engine.runner import ModelRunner
from engine.sampling.sampler import Sampled, Sampler
from engine.table import RequestTable
from engine.upload import BatchRows, ChunkInputs, StepInputs
from speculative.accept import Accepted, accept, trim
from speculative.base import DraftView, Observed, PrefillSeen, Speculator
from speculative.tree import TreeGeometry, geometry


@dataclass(frozen=True)
class StepOutput:
    """Device results of a step. packed: int32 [B, W + 5] = emitted tokens, n_emitted, finish, n_accepted,
    drafted nodes, the drafter's signal.

    logprobs: the token's own and, if asked for, the best k of every emitted position; empty when not asked
    for. observe: what the speculator learns, to be run once the results are on their way.
    """

    packed: Tensor
    logprobs: tuple[Tensor, ...] = ()
    observe: Callable[[], None] | None = None


class Step:
    """The stages of a step (docs/architecture.md), bound to one table, runner, speculator and sampler."""

    def __init__(
        self, table: RequestTable, runner: ModelRunner, speculator: Speculator, sampler: Sampler
    ) -> None:
        self._table = table
        self._runner = runner
        self._speculator = speculator
        self._sampler = sampler

    def run(self, step: ScheduledStep, inputs: StepInputs, host_lens: tuple[int, ...] | None) -> StepOutput:
        """Apply the host's writes, then run the pass. host_lens: exact lengths if some part reads them."""
        if inputs.writes is not None:
            self._table.apply(inputs.writes)
        if inputs.chunk is not None:
            return self._extend(step, inputs.batch, inputs.chunk, host_lens)
        return self._verify(step, inputs.batch, host_lens)

    def _verify(self, step: ScheduledStep, batch: BatchRows, host_lens: tuple[int, ...] | None) -> StepOutput:
        table, rows = self._table, batch.rows
        lens = SeqLens(table.seq_lens[rows], step.bounds, host_lens)
        view = self._view(step, batch, lens)
        tree = self._speculator.propose(view)
        shape = geometry(tree, self._branches(step))
        forward = self._verify_batch(step, batch, tree.tokens, lens, shape)
        result = self._runner.forward(forward)
        sampled = self._draw(result.logits, rows, lens.device.long(), shape, step)
        target = sampled.tokens.view(len(step.rows), step.width)
        taken = accept(tree, target)
        count, finish = trim(taken.emitted, taken.n_accepted + 1, lens.device, rows, table.columns)
        if self._branches(step):
            self._compact(forward, taken)
        table.commit(rows, lens.device.long() + 1, taken.emitted, lens.device + count)
        if step.sampling.shaped:
            table.columns.count_outputs(rows, taken.emitted, count)
        seen = Observed(
            tree, target, taken.accept_index, taken.n_accepted, taken.emitted, result.hidden, result.aux
        )
        packed = _pack(taken.emitted, count, finish, taken.n_accepted, tree)
        return StepOutput(
            packed,
            _along_path(sampled, taken, step),
            partial(self._speculator.observe, view, seen),
        )

    def _branches(self, step: ScheduledStep) -> bool:
        """Whether drafts of this step may branch: a single node cannot."""
        return self._speculator.plan.tree and step.width > 1

    def _view(self, step: ScheduledStep, batch: BatchRows, lens: SeqLens) -> DraftView:
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
        )

    def _verify_batch(
        self, step: ScheduledStep, batch: BatchRows, tokens: Tensor, lens: SeqLens, shape: TreeGeometry
    ) -> ForwardBatch:
        width = step.width
        start = lens.device.long()
        if width == 1:
            positions, places, token_rows = start, start, batch.rows
        else:
            steps = torch.arange(width, device=start.device)
            places = (start.unsqueeze(1) + steps).view(-1)
            positions = (start.unsqueeze(1) + shape.depth).view(-1)
            token_rows = batch.rows.repeat_interleave(width)
        return ForwardBatch(
            mode=Mode.VERIFY,
            rows=batch.rows,
            input_ids=tokens.reshape(-1).long(),
            positions=positions,
            slots=self._table.slots(token_rows, places),
            seq_lens=lens,
            query_start=batch.query_start,
            query_lens=step.query_lens,
            page_table=self._table.page_table,
            width=width,
            tree_mask=shape.mask,
            page_size=self._table.size.page_size,
        )

    def _draw(
        self, logits: Tensor, rows: Tensor, start: Tensor, shape: TreeGeometry, step: ScheduledStep
    ) -> Sampled:
        """The target's own token after every node; the one after a node of depth d sits at start + d + 1."""
        if step.width == 1:
            positions, node_rows = start + 1, rows
        else:
            positions = (start.unsqueeze(1) + 1 + shape.depth).view(-1)
            node_rows = rows.repeat_interleave(step.width)
        ancestors = shape.ancestors if step.sampling.shaped and step.width > 1 else None
        return self._sampler(logits, node_rows, positions, self._table.columns, step.sampling, ancestors)

    def _compact(self, forward: ForwardBatch, taken: Accepted) -> None:
        """Bring the KV of accepted tree nodes to the front of the window; a chain's already is there."""
        width = forward.width
        slots = forward.slots.view(-1, width)
        steps = torch.arange(width, device=slots.device).expand_as(slots)
        source = torch.where(taken.accept_index >= 0, taken.accept_index.long(), steps)
        self._runner.pool.move(slots.gather(1, source).view(-1), slots.reshape(-1))

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
        last = new_lens[chunk.emit_index].long()
        sampled = self._sampler(result.logits, emitting, last, table.columns, step.sampling, None)
        drawn = sampled.tokens.unsqueeze(1)
        ones = torch.ones_like(sampled.tokens)
        count, finish = trim(drawn, ones, (last - 1).int(), emitting, table.columns)
        table.seq_lens[rows] = new_lens
        table.commit(emitting, last, drawn, last.int())
        if step.sampling.shaped:
            table.columns.count_outputs(emitting, drawn, count)
        packed = _pack(drawn, count, finish, torch.zeros_like(count), None)
        seen = PrefillSeen(forward, chunk.token_rows, result.hidden, result.aux)
        view = self._view(step, batch, lens)
        return StepOutput(packed, _columns(sampled), partial(self._speculator.prefill, view, seen))


def _pack(tokens: Tensor, count: Tensor, finish: Tensor, accepted: Tensor, tree: DraftTree | None) -> Tensor:
    zero = torch.zeros_like(count)
    drafted = zero if tree is None or tree.parent.shape[1] == 1 else (tree.parent >= 0).sum(1)
    signal = zero if tree is None or tree.signal is None else tree.signal
    tail = [x.int() for x in (count, finish, accepted, drafted, signal)]
    return torch.cat((tokens.int(), torch.stack(tail, dim=1)), dim=1)


def _columns(sampled: Sampled) -> tuple[Tensor, ...]:
    if sampled.logprobs is None:
        return ()
    if sampled.top_ids is None or sampled.top_logprobs is None:
        return (sampled.logprobs,)
    return (sampled.logprobs, sampled.top_ids, sampled.top_logprobs)


def _along_path(sampled: Sampled, taken: Accepted, step: ScheduledStep) -> tuple[Tensor, ...]:
    """Logprob rows of the accepted path: emitted token j was drawn at node accept_index[j]."""
    values = _columns(sampled)
    if not values or step.width == 1:
        return values
    base = torch.arange(len(step.rows), device=taken.accept_index.device).unsqueeze(1) * step.width
    nodes = (base + taken.accept_index.clamp_min(0)).view(-1)
    return tuple(v.index_select(0, nodes) for v in values)
