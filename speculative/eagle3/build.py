"""Builds an EAGLE3 draft out of a weight reader, for one target: merged projections.

Knows no file format; the reader brings the tensors under their published names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.errors import UserError
from engine.models.linear import Int4Linear, Linear, dense_linear, fits_int4
from engine.models.quantize import quantise_q4
from engine.models.weights import GROUP, WeightReader
from speculative.base import DraftTarget
from speculative.eagle3 import names
from speculative.eagle3.draft import Eagle3Draft, Eagle3Weights
from speculative.eagle3.fusion import NoNorm, RowNorm, StateNorm, Unmapped
from speculative.eagle3.shape import Eagle3Shape
from speculative.eagle3.shortlist import DenseBest, chooser
from speculative.eagle3.vocabulary import check_marks, target_ids

OVERSHOOT = 64  # positions past the target's last that a late step may touch before its result is dropped
_ROWS_AT_ONCE = 8192


def build_draft(shape: Eagle3Shape, reader: WeightReader, target: DraftTarget) -> Eagle3Draft:
    """The draft of `shape`, which fits the target and whose tensors were checked."""
    builder = _Builder(shape, reader, target)
    return Eagle3Draft(shape, builder.weights(), target.shape.max_positions + OVERSHOOT)


class TargetHead(Linear):
    """The target's own head: its logits, fp32."""

    def __init__(self, logits: Callable[[Tensor], Tensor]) -> None:
        self._logits = logits

    def __call__(self, x: Tensor) -> Tensor:
        return self._logits(x)

    def nbytes(self) -> int:
        return 0


class _Builder:
    """Reads, converts, merges and packs tensors."""

    def __init__(self, shape: Eagle3Shape, reader: WeightReader, target: DraftTarget) -> None:
        self._shape, self._reader, self._target = shape, reader, target
        self._int4 = target.weights == "int4"
        self._dtype: torch.dtype = torch.bfloat16 if self._int4 else getattr(torch, target.weights)

    def weights(self) -> Eagle3Weights:
        embedding = self._embedding()
        head, matrix = self._head(embedding)
        outputs = self._shape.layer.vocab_size if matrix is None else len(matrix)
        qkv = [f"{names.ATTENTION}{part}_proj" for part in ("q", "k", "v")]
        return Eagle3Weights(
            state_norm=self._state_norm(),
            fc=self._fc(),
            embed=self._target.embedding() if embedding is None else embedding,
            embed_norm=self._tensor(names.LAYER + "input_layernorm.weight"),
            hidden_norm=self._tensor(names.LAYER + "hidden_norm.weight"),
            qkv=self._linear(qkv),
            output=self._linear([names.ATTENTION + "o_proj"]),
            post_norm=self._tensor(names.LAYER + "post_attention_layernorm.weight"),
            gate_up=self._linear([names.MLP + "gate_proj", names.MLP + "up_proj"]),
            down=self._linear([names.MLP + "down_proj"]),
            final_norm=self._tensor(names.FINAL_NORM),
            head=head,
            choice=DenseBest(head) if matrix is None else chooser(matrix, head),
            target_ids=self._target_ids(outputs),
            own_bytes=0 if embedding is None else embedding.nbytes,
        )

    def _tensor(self, name: str) -> Tensor:
        return self._reader.read(name).to(self._target.device, self._dtype).contiguous()

    def _state_norm(self) -> StateNorm:
        shape = self._shape
        if shape.fc_norm:
            rows = [self._tensor(names.state_norm(i)) for i in range(max(shape.aux.count, 1))]
            return RowNorm(torch.stack(rows), shape.layer.rms_eps)
        if shape.norm_before_fc:
            return RowNorm(self._tensor(names.STATE_NORM).unsqueeze(0), shape.layer.rms_eps)
        return NoNorm()

    def _fc(self) -> Linear:
        return self._linear(["fc"]) if names.FC in self._reader.shapes else Unmapped()

    def _linear(self, parts: Sequence[str]) -> Linear:
        biased = parts[0] + ".bias" in self._reader.shapes
        bias = torch.cat([self._tensor(part + ".bias") for part in parts]) if biased else None
        weights = [self._reader.read(part + ".weight") for part in parts]
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        if self._int4 and weight.shape[1] % GROUP == 0:
            blocks = quantise_q4(weight)
            if fits_int4(blocks):
                return Int4Linear(blocks, bias, keep_dense=True)
        return dense_linear(weight.to(self._target.device, self._dtype).contiguous(), bias)

    def _embedding(self) -> Tensor | None:
        """None where it is the target's: not stored, or stored and equal."""
        if names.EMBED not in self._reader.shapes:
            self._check_shared_embedding()
            return None
        weight = self._tensor(names.EMBED)
        return None if self._equals_target(weight) else weight

    def _check_shared_embedding(self) -> None:
        own, theirs = self._shape.layer.hidden_size, self._target.shape.hidden_size
        if own != theirs:
            raise UserError(
                f"{self._reader.where} has no {names.EMBED}, and its hidden size {own} differs from the "
                f"{theirs} of {self._target.name}, so the target's embedding cannot serve"
            )

    def _equals_target(self, weight: Tensor) -> bool:
        if weight.shape[1] != self._target.shape.hidden_size:
            return False
        own, theirs = (torch.split(x, _ROWS_AT_ONCE) for x in (weight, self._target.embedding()))
        return all(torch.equal(x, y) for x, y in zip(own, theirs, strict=True))

    def _head(self, embedding: Tensor | None) -> tuple[Linear, Tensor | None]:
        """The head and its matrix [Vd, H]: the draft's own, its embedding, or the target's (None)."""
        layer = self._shape.layer
        if not layer.tied and names.HEAD in self._reader.shapes:
            # Never in 4 bits alone: over 8192 to 32768 rows of SmolLM2's own head these choose another token
            # at 17% of all positions (bfloat16: 2%). See shortlist.py.
            weight = self._tensor(names.HEAD)
            return dense_linear(weight), weight
        if layer.tied and embedding is not None:
            return dense_linear(embedding), embedding
        self._check_shared_head()
        if layer.tied and not self._target.shape.tied:
            matrix = self._target.embedding()
            return dense_linear(matrix), matrix
        return TargetHead(self._target.logits), None

    def _check_shared_head(self) -> None:
        where, layer, target = self._reader.where, self._shape.layer, self._target
        if layer.hidden_size != target.shape.hidden_size:
            raise UserError(
                f"{where} has no {names.HEAD}, and its hidden size {layer.hidden_size} differs from the "
                f"{target.shape.hidden_size} of {target.name}, so the target's head cannot serve"
            )

    def _target_ids(self, outputs: int) -> Tensor:
        where, vocab = self._reader.where, self._target.shape.vocab_size
        offsets = self._reader.read(names.D2T) if names.D2T in self._reader.shapes else None
        ids = target_ids(offsets, outputs, vocab, where)
        if names.T2D in self._reader.shapes:
            check_marks(self._reader.read(names.T2D), ids, where)
        return ids.to(self._target.device)
