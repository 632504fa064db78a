"""Changes to the logits before a token is drawn: logit bias, penalties, and stop ids masked by min_tokens.

Knows the sampling columns; nothing of temperature or filters.
Legend: N nodes, V vocabulary, D drafted tokens on a node's path, S stop ids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.sampling.columns import SamplingColumns

_MASKED = -1e30  # finite, so that a row whose every token is masked still has an answer and no NaN


def shape_logits(
    logits: Tensor, rows: Tensor, positions: Tensor, columns: SamplingColumns, ancestors: Tensor | None
) -> Tensor:
    """A new fp32 [N, V]: bias, then repetition, frequency and presence penalty, then the min_tokens mask.

    Arguments as of Sampler. Drafted tokens on the path to a node (`ancestors`, int32 [N, D], -1 padded)
    count as output there, so every node is conditioned on exactly what precedes it.
    """
    shaped = _add_at(logits, columns.bias_ids[rows], columns.bias_values[rows])
    shaped = _penalise(shaped, rows, columns, ancestors)
    early = positions < columns.min_len[rows]
    mask = torch.where(early, _MASKED, 0.0).unsqueeze(1)
    stop_ids = columns.stop_ids[rows]
    return _add_at(shaped, stop_ids, mask.expand_as(stop_ids))


def _add_at(logits: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """logits plus `values` [N, S] at token `ids` int32 [N, S]; ids of -1 add nothing."""
    return logits.scatter_add(1, ids.clamp_min(0).long(), torch.where(ids >= 0, values, 0.0))


def _penalise(logits: Tensor, rows: Tensor, columns: SamplingColumns, ancestors: Tensor | None) -> Tensor:
    """Repetition penalty (Keskar et al. 2019, sec. 4.1) over prompt and output; frequency and presence
    penalties are subtracted, once an output occurrence and once a distinct output token."""
    if columns.output_counts is None or columns.prompt_mask is None:
        return logits
    counts = columns.output_counts.index_select(0, rows)
    if ancestors is not None:
        counts.scatter_add_(1, ancestors.clamp_min(0).long(), (ancestors >= 0).int())
    counts = counts.float()
    in_output = counts.clamp_max(1)
    seen = columns.prompt_mask.index_select(0, rows).view(torch.uint8).float()
    torch.maximum(seen, in_output, out=seen)
    logits = _repetition(logits, seen, columns.repetition_penalty[rows].unsqueeze(1))
    logits.addcmul_(columns.frequency_penalty[rows].unsqueeze(1), counts, value=-1)
    return logits.addcmul_(columns.presence_penalty[rows].unsqueeze(1), in_output, value=-1)


def _repetition(logits: Tensor, seen: Tensor, factor: Tensor) -> Tensor:
    """Where `seen` (0.0 or 1.0) positive logits are divided by the factor, others multiplied by it.

    In arithmetic rather than `where`, which is many times slower on the CPU; a factor of 1 changes no bit.
    """
    logits = logits.clamp_min(_MASKED)  # minus infinity would become NaN below
    positive = logits.clamp_min(0)
    change = (logits - positive).mul_(factor).addcdiv_(positive, factor).sub_(logits)
    return logits.addcmul_(seen, change)
