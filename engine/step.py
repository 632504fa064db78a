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
from speculative.base import DraftView, Observed, PrefillSeen, Speculator
from speculative.ops import DraftOps
from speculative.tree import TreeGeometry


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
        self._accept = Acceptance(sampler, ops, table.columns)
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
        """The host's writes to the table: what changes from step to step and is no tensor at a fixed place."""
        if inputs.writes is not None:
            self._table.apply(inputs.writes)

    def decode(self, step: ScheduledStep, batch: BatchRows, host_lens: tuple[int, ...] | None) -> StepOutput:
        """A VERIFY pass, the writes done. Of `step` it reads sizes, bounds, width and class; all else lies on
        the device."""
        table, rows = self._table, batch.rows
        lens = SeqLens(table.seq_lens[rows], step.bounds, host_lens)
        view = self._view(step, batch, lens)
        drafted = _as_asked(self._speculator.propose(view), step.width)
        shape = self._ops.geometry(drafted, self._branches(step))
        tree = self._accept.present(drafted, shape, rows)
        forward = self._verify_batch(step, batch, tree.tokens, lens, shape)
        result = self._runner.forward(forward)
        judged = self._accept(Asked(rows, lens.device, tree, shape, result.logits, step.sampling))
        taken, count = judged.taken, judged.count
        if self._branches(step):  # a chain's accepted KV lies in front already
            self._compactor(forward.slots.view(-1, step.width), taken.accept_index)
        table.commit(rows, lens.device.long() + 1, taken.emitted, lens.device + count)
        if step.sampling.shaped:
            table.columns.count_outputs(rows, taken.emitted, count)
        seen = _observed(tree, judged.target, taken, result)
        return StepOutput(
            _pack(taken.emitted, count, judged.finish, taken.n_accepted, tree),
            judged.logprobs,
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
            draws_of(table.columns, batch.rows) if step.sampling.sampled else None,
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
        count, finish = self._ops.trim(drawn, ones, (last - 1).int(), emitting, table.columns)
        table.seq_lens[rows] = new_lens
        table.commit(emitting, last, drawn, last.int())
        if step.sampling.shaped:
            table.columns.count_outputs(emitting, drawn, count)
        packed = _pack(drawn, count, finish, torch.zeros_like(count), None)
        seen = PrefillSeen(forward, chunk.token_rows, result.hidden, result.aux)
        view = self._view(step, batch, lens)
        return StepOutput(packed, logprob_rows(sampled), partial(self._speculator.prefill, view, seen))


def _as_asked(tree: DraftTree, width: int) -> DraftTree:
    """A drafter that ignores view.width would fail far from here."""
    if tree.tokens.shape[1] != width:
        raise InternalError(
            f"the drafter returned {tree.tokens.shape[1]} nodes a request for a step of width {width}: "
            "propose has to follow view.width"
        )
    return tree


def _pack(tokens: Tensor, count: Tensor, finish: Tensor, accepted: Tensor, tree: DraftTree | None) -> Tensor:
    zero = torch.zeros_like(count)
    drafted = zero if tree is None or tree.parent.shape[1] == 1 else (tree.parent >= 0).sum(1)
    signal = zero if tree is None or tree.signal is None else tree.signal
    tail = [x.int() for x in (count, finish, accepted, drafted, signal)]
    return torch.cat((tokens.int(), torch.stack(tail, dim=1)), dim=1)


def _observed(tree: DraftTree, target: Tensor, taken: Accepted, result: ForwardResult) -> Observed:
    return Observed(
        tree, target, taken.accept_index, taken.n_accepted, taken.emitted, result.hidden, result.aux
    )
