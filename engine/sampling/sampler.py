"""The sampler: the target's token after every node, with one coin a node, and its log-probabilities.

Knows logits and the sampling columns; nothing of drafts beyond the tokens on a node's path. Static shapes,
no value read on the host. Legend: N nodes (rows of logits), V vocabulary, D drafted tokens on a path, K
best logprobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.sampling.asked import SamplingClass
from engine.sampling.choose import argmax_tokens, inverse_cdf, sum_rows
from engine.sampling.columns import SamplingColumns
from engine.sampling.filters import apply_filters
from engine.sampling.rng import uniform
from engine.sampling.shaping import shape_logits

LOGPROB_FLOOR = -9999.0  # stands for minus infinity, which JSON cannot say


@dataclass(frozen=True)
class Sampled:
    """tokens: int32 [N]. logprobs: fp32 [N] of the token under the model's unfiltered distribution (softmax
    of the raw logits), finite; None unless asked for. top_ids int32 [N, K] and top_logprobs fp32 [N, K]:
    the K likeliest, best first; None for K = 0."""

    tokens: Tensor
    logprobs: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


class Sampler:
    """Draws by inverse CDF in fixed vocabulary order with the coin uniform(key, position).

    The distribution: logits, plus bias, penalties and the min_tokens mask, divided by the temperature, then
    top-k, top-p, min-p, renormalised. Temperature 0 takes the largest shaped logit, the lowest id on ties.
    A draw depends on the node's logits and its request alone, never on the batch, so a draft is accepted
    exactly when it equals the draw (speculative.accept), and seeded output is the same with and without
    speculation.
    """

    def __call__(
        self,
        logits: Tensor,
        rows: Tensor,
        positions: Tensor,
        columns: SamplingColumns,
        cls: SamplingClass,
        ancestors: Tensor | None = None,
    ) -> Sampled:
        """Draw one token a node.

        logits: [N, V] in fp32 or the model's precision, left unchanged. rows: int64 [N] in `columns`.
        positions: int64 [N], where the drawn token will stand. cls: the union over the requests;
        stages that it rules out are skipped. ancestors: int32 [N, D] drafted tokens on the path to the node,
        itself included, -1 padded; needed when cls.shaped and W > 1.
        """
        logits = logits if cls.certain else logits.float()  # the likeliest token is that of either precision
        shaped = shape_logits(logits, rows, positions, columns, ancestors) if cls.shaped else logits
        tokens = argmax_tokens(shaped)
        if cls.sampled:
            weights, greedy = _weights(shaped, rows, columns, cls)
            drawn = inverse_cdf(weights, uniform(columns.key[rows], positions))
            tokens = torch.where(greedy, tokens, drawn)
        return with_logprobs(logits, tokens, cls.top_logprobs)

    def probabilities(
        self,
        logits: Tensor,
        rows: Tensor,
        positions: Tensor,
        columns: SamplingColumns,
        cls: SamplingClass,
        ancestors: Tensor | None = None,
    ) -> Tensor:
        """fp32 [N, V]: what a token after each node would be drawn from; a greedy row has one 1. Arguments as
        of a call."""
        logits = logits.float()
        shaped = shape_logits(logits, rows, positions, columns, ancestors) if cls.shaped else logits
        weights, greedy = _weights(shaped, rows, columns, cls)
        best = torch.zeros_like(weights).scatter_(1, argmax_tokens(shaped).unsqueeze(1), 1.0)
        return torch.where(greedy.unsqueeze(1), best, weights.div_(sum_rows(weights).unsqueeze(1)))


def _weights(
    shaped: Tensor, rows: Tensor, columns: SamplingColumns, cls: SamplingClass
) -> tuple[Tensor, Tensor]:
    """Filtered, unnormalised weights fp32 [N, V] with 1 at the top, and which rows are greedy, bool [N]."""
    temperature = columns.temperature[rows]
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature).unsqueeze(1)
    # the largest logit goes first: dividing it by a tiny temperature would overflow
    weights = (shaped - shaped.amax(-1, keepdim=True)).div_(divisor).exp_()
    if cls.filters:
        weights = apply_filters(weights, columns.top_k[rows], columns.top_p[rows], columns.min_p[rows])
    return weights, greedy


def with_logprobs(logits: Tensor, tokens: Tensor, best: int) -> Sampled:
    """`tokens`, int64 or int32 [N], with their log-probabilities under `logits` [N, V], in fp32 whatever
    precision these have. best: K; below 0 none are computed."""
    if best < 0:
        return Sampled(tokens.int())
    logits = logits.float()
    norm = logits.logsumexp(-1, keepdim=True)
    own = (logits.gather(1, tokens.long().unsqueeze(1)) - norm).squeeze(1).clamp_min(LOGPROB_FLOOR)
    if best == 0:
        return Sampled(tokens.int(), own)
    values, ids = logits.topk(min(best, logits.shape[1]), dim=-1)
    return Sampled(tokens.int(), own, ids.int(), (values - norm).clamp_min(LOGPROB_FLOOR))
