"""The draft's own vocabulary: which token of the target each of its ids means.

Knows the stored form, no model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import UserError


def target_ids(offsets: Tensor | None, size: int, vocab: int, where: str) -> Tensor:
    """d2t [size] holds offsets: target id = draft id + d2t[draft id] -> int32 [size] target ids.

    Absent offsets mean equal vocabularies. Raises UserError for a reduced vocabulary without a map, or for a
    map that cannot be one: ids have to ascend and stay below `vocab`.
    """
    own = torch.arange(size)
    if offsets is None:
        if size != vocab:
            raise UserError(
                f"{where} has no d2t, yet its head knows {size} of the target's {vocab} tokens: which ones "
                "is not known; use a checkpoint that holds d2t"
            )
        return own.int()
    _check_offsets(offsets, size, vocab, where)
    return (own + offsets.long()).int()


def _check_offsets(offsets: Tensor, size: int, vocab: int, where: str) -> None:
    if offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise UserError(f"{where}: d2t is stored as {offsets.dtype}, it has to hold integers")
    ids = torch.arange(size) + offsets.long()
    if size < vocab and not offsets.any():
        raise UserError(
            f"{where}: d2t is all zero, which is right for equal vocabularies only; the head knows {size} of "
            f"the target's {vocab} tokens, so the map was never filled in"
        )
    if bool((ids.diff() <= 0).any()):
        at = int((ids.diff() <= 0).int().argmax())
        raise UserError(
            f"{where}: d2t does not ascend: draft ids {at} and {at + 1} mean the target ids {int(ids[at])} "
            f"and {int(ids[at + 1])}; it has to hold offsets (target id - draft id), not target ids"
        )
    if int(ids[0]) < 0 or int(ids[-1]) >= vocab:
        raise UserError(
            f"{where}: d2t leads to the target ids {int(ids[0])}..{int(ids[-1])}; the target has "
            f"0..{vocab - 1}"
        )


def check_marks(marks: Tensor, ids: Tensor, where: str) -> None:
    """t2d [V] marks the target's tokens that the draft knows; raise UserError unless these are `ids`."""
    marked = marks.bool().nonzero().flatten()
    if len(marked) != len(ids) or not torch.equal(marked, ids.long()):
        raise UserError(
            f"{where}: t2d marks {len(marked)} tokens, d2t names {len(ids)}, and they are not the same ones; "
            "the checkpoint contradicts itself"
        )
