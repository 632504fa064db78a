"""The EAGLE3 draft model: one decoder layer that continues the target's hidden states.

Knows nothing of files, of chains and trees, or of the kind of attention it is given. Row t pairs the
embedding of token t + 1 with the hidden state of position t, and predicts token t + 2.
Source: Li et al. 2025 (EAGLE-3), sec. 3.

Legend: T tokens of the pass, N rows asked for, H hidden size of the draft, Ht of the target, n fused states,
Hq and Hkv heads, D head size, V and Vd vocabularies of target and draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.base import AttentionBackend
from backends.model_ops import ModelOps
from backends.torch_ops import TorchOps
from engine.batch import ForwardBatch, KVGroup, KVLayout, LayerKV
from engine.models.linear import Linear
from engine.models.rope import rope_tables
from speculative.base import DraftModel
from speculative.eagle3.fusion import StateNorm
from speculative.eagle3.shape import Eagle3Shape
from speculative.eagle3.shortlist import DenseBest, Shortlist


@dataclass(frozen=True)
class Eagle3Weights:
    """Norms [H]. fc: n * Ht -> H; qkv: 2H -> (Hq + 2 Hkv) D; gate_up: H -> 2F, gate first; head: H -> Vd.

    choice: the head's argmax. embed: [V, H]. target_ids: int32 [Vd].
    own_bytes: of an embedding that the target does not share.
    """

    state_norm: StateNorm
    fc: Linear
    embed: Tensor
    embed_norm: Tensor
    hidden_norm: Tensor
    qkv: Linear
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear
    final_norm: Tensor
    head: Linear
    choice: Shortlist | DenseBest
    target_ids: Tensor
    own_bytes: int = 0


@dataclass(frozen=True)
class Leaving:
    """What a pass computed, [T, H], its last sum still to be made: hidden + residual (None: hidden alone).
    Whoever needs a few rows, or their norm, has the sum for nothing."""

    hidden: Tensor
    residual: Tensor | None

    def total(self) -> Tensor:
        """[T, H]."""
        return self.hidden if self.residual is None else self.hidden + self.residual


class Eagle3Draft(DraftModel):
    """A draft model on one device, with the KV of its one layer.

    positions: rows of its RoPE tables, at least what the target may reach: past `max_positions`, where it was
    not trained, its drafts are poor, but computing them is safe. expected: see
    Speculator.expected_acceptance.
    """

    expected: tuple[float, ...] | None = None

    def __init__(self, shape: Eagle3Shape, weights: Eagle3Weights, positions: int) -> None:
        layer = shape.layer
        self.shape, self.weights = shape, weights
        self.device, self.dtype = weights.final_norm.device, weights.final_norm.dtype
        group = KVGroup(1, layer.num_kv_heads, layer.head_dim)
        self.kv_layout = KVLayout((group,), str(self.dtype).removeprefix("torch."))
        self.num_heads, self.num_kv_heads = layer.num_heads, layer.num_kv_heads
        self.head_dim, self.hidden_size = layer.head_dim, layer.hidden_size
        self.aux_layers = shape.aux_layers
        self.max_positions = layer.max_positions
        self._eps = layer.rms_eps
        self._ops: ModelOps = TorchOps()
        self._heads = [layer.num_heads, layer.num_kv_heads, layer.num_kv_heads]
        self.positions = max(positions, layer.max_positions)
        self._cos, self._sin = rope_tables(layer, self.positions, str(self.device))

    def use(self, ops: ModelOps) -> None:
        """What computes the states that go in and the head: the operations of the attention that runs it."""
        self._ops = ops

    def fuse(self, states: Tensor) -> Tensor:
        """The target's states [T, n * Ht] -> [T, H]; without aux_layers its final normalised ones [T, Ht]."""
        return self._ops.linear(self.weights.state_norm(states), self.weights.fc)

    def forward(
        self, batch: ForwardBatch, hidden: Tensor, attention: AttentionBackend, kv: Sequence[LayerKV]
    ) -> Tensor:
        """batch.input_ids: the NEXT token of each row; hidden [T, H]: fused states, or what the step before
        returned -> [T, H], what the next step and the head take; writes KV at batch.slots.

        The result is the residual stream before the final norm; with norm_output after it. `hidden` may be
        overwritten. The caller has run attention.init_forward_metadata(batch).
        """
        return self.run(batch, hidden, attention, kv).total()

    def run(
        self, batch: ForwardBatch, hidden: Tensor, attention: AttentionBackend, kv: Sequence[LayerKV]
    ) -> Leaving:
        """`forward`, but for its last sum."""
        ops, weights = attention.ops, self.weights
        both = self._inputs(batch, hidden, ops)
        residual = both[:, self.hidden_size :] if self.shape.norm_before_residual else hidden
        q, k, v = self._rotated(both, batch, ops, kv[0])
        mixed = ops.linear(attention.forward(q, k, v, kv[0], batch), weights.output)
        gated, residual = ops.norm_gated(mixed, residual, weights.post_norm, self._eps, weights.gate_up)
        return self._leave(ops.linear(gated, weights.down), residual, ops)

    def store(
        self, batch: ForwardBatch, hidden: Tensor, attention: AttentionBackend, kv: Sequence[LayerKV]
    ) -> None:
        """The KV that `forward` writes, and nothing else: that of the only layer needs no attention."""
        self._rotated(self._inputs(batch, hidden, attention.ops), batch, attention.ops, kv[0])

    def _inputs(self, batch: ForwardBatch, hidden: Tensor, ops: ModelOps) -> Tensor:
        """[T, 2H]: normed embedding and hidden side by side."""
        weights = self.weights
        tokens, norms = batch.input_ids, (weights.embed_norm, weights.hidden_norm)
        return ops.norm_pair(weights.embed, tokens, norms[0], hidden, norms[1], self._eps)

    def _rotated(
        self, x: Tensor, batch: ForwardBatch, ops: ModelOps, kv: LayerKV
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[T, 2H] -> q, k, v; k and v are written to `kv`."""
        qkv = ops.linear(x, self.weights.qkv).view(x.shape[0], sum(self._heads), self.head_dim)
        q, k, v = torch.split_with_sizes(qkv, self._heads, dim=1)
        q, k = ops.rope_store(q, k, v, self._cos, self._sin, kv, batch)
        return q, k, v

    def _leave(self, hidden: Tensor, residual: Tensor, ops: ModelOps) -> Leaving:
        if not self.shape.norm_output:
            return Leaving(hidden, residual)
        return Leaving(ops.add_rms_norm(hidden, residual, self.weights.final_norm, self._eps)[0], None)

    def logits(self, hidden: Tensor) -> Tensor:
        """What `forward` returned, [N, H] -> [N, Vd] over the draft's own vocabulary, in fp32 or the
        model's precision (ModelOps.scores)."""
        norm = self._head_norm
        normed = hidden if norm is None else self._ops.rms_norm(hidden.clone(), norm, self._eps)
        return self._ops.scores(normed, self.weights.head)

    @property
    def _head_norm(self) -> Tensor | None:
        """The norm in front of the head; None where `forward` has applied it."""
        return None if self.shape.norm_output else self.weights.final_norm

    def best(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[N, H] -> int32 [N]: the most probable next tokens, in target ids. out: where they go."""
        weights = self.weights
        return self._ops.best(hidden, self._head_norm, self._eps, weights.choice, weights.target_ids, out)

    def best_after(self, left: Leaving, out: Tensor) -> Tensor:
        """`best` of a pass's result goes to `out`; returns the result, [N, H], the sum made on the way.
        `left` is used up."""
        hidden, normed = self._normed(left)
        weights = self.weights
        self._ops.best(normed, None, self._eps, weights.choice, weights.target_ids, out)
        return hidden

    def top_after(self, left: Leaving, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ids, probabilities) as `top` of a pass's result, and the result; `left` is used up."""
        hidden, normed = self._normed(left)
        weights = self.weights
        ids, logprobs = self._ops.top(normed, None, self._eps, weights.choice, weights.target_ids, k)
        return ids, logprobs, hidden

    def _normed(self, left: Leaving) -> tuple[Tensor, Tensor]:
        """A pass's result, and that as the head takes it."""
        if left.residual is None:
            return left.hidden, left.hidden
        norm = self.weights.final_norm
        normed, total = self._ops.add_rms_norm(left.hidden, left.residual, norm, self._eps)
        return total, normed

    def top(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """[N, H] -> the k most probable next tokens, best first: (target ids int32 [N, k], natural-log
        probabilities under the draft fp32 [N, k])."""
        weights = self.weights
        return self._ops.top(hidden, self._head_norm, self._eps, weights.choice, weights.target_ids, k)

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Ids of the draft's vocabulary, any shape -> int32 ids of the target's."""
        return self.weights.target_ids[draft_ids]

    def nbytes(self) -> int:
        """Bytes of its own matrices; what it shares with the target counts there."""
        weights = self.weights
        linears = (weights.fc, weights.qkv, weights.output, weights.gate_up, weights.down, weights.head)
        return weights.own_bytes + weights.choice.nbytes() + sum(part.nbytes() for part in linears)
