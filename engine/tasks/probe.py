"""How close a sampling decision was: the reference's own arithmetic in plain torch, for one position.

Knows logits and parameters; not where the logits came from, nor the device code it judges.
Legend: V vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.lazy import lazy_import
from engine.params import SamplingParams, sample_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy_import("torch")

NEVER = float("inf")


@dataclass(frozen=True)
class Tolerance:
    """Largest distance of a near-tie. gap: between logits (greedy). coin: between the coin and the edge of
    the token's interval (sampling)."""

    gap: float
    coin: float


# float32: 16 times the noise of differing reductions. The others grow with their format's step: two different
# bfloat16 logits near 30 are 0.125 apart at least.
TOLERANCES = {
    "float32": Tolerance(1e-3, 1e-4),
    "float16": Tolerance(0.0625, 0.01),
    "bfloat16": Tolerance(0.5, 0.05),
    "int4": Tolerance(0.5, 0.05),
}


@dataclass(frozen=True)
class Decision:
    """One token choice. prompt and output: ids before it. index: the sample's number among n. seed: the
    request's. banned: ids that min_tokens forbids there."""

    prompt: Sequence[int]
    output: Sequence[int]
    params: SamplingParams
    index: int
    seed: int
    banned: Sequence[int] = ()


def distance(logits: Tensor, decision: Decision, token: int, tolerance: Tolerance) -> float:
    """How far `token` is from being the choice; 0 if it is the choice. logits: fp32 [V]."""
    scores = shaped(logits.double().cpu(), decision)
    if decision.params.temperature == 0:
        return float(scores.max() - scores[token])
    coin = coin_of(decision)
    variants = _weights(scores / decision.params.temperature, decision.params, tolerance)
    return min(_edge_distance(weights, coin, token) for weights in variants)


def top_two_gap(logits: Tensor, decision: Decision) -> float:
    """The largest score minus the second largest, after penalties and bias."""
    best = shaped(logits.double().cpu(), decision).topk(2).values
    return float(best[0] - best[1])


def shaped(scores: Tensor, decision: Decision) -> Tensor:
    """Bias, then penalties, then banned ids. Repetition: Keskar et al. 2019 (CTRL), sec. 4.1."""
    params, scores = decision.params, scores.clone()
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted({*decision.prompt, *decision.output}))
        value, factor = scores[seen], params.repetition_penalty
        scores[seen] = torch.where(value > 0, value / factor, value * factor)
    for token, count in Counter(decision.output).items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    for token in decision.banned:
        scores[token] = -torch.inf
    return scores


def coin_of(decision: Decision) -> float:
    """The uniform number that drew the token at this position."""
    from engine.sampling.rng import uniform

    key = sample_key(decision.seed, decision.index)
    signed = key - (1 << 64) if key >> 63 else key
    position = len(decision.prompt) + len(decision.output)
    return float(uniform(torch.tensor([signed]), torch.tensor([position]))[0])


def _weights(scores: Tensor, params: SamplingParams, tolerance: Tolerance) -> Iterator[Tensor]:
    """[V] probabilities after the filters; again with each filter's edge moved by the tolerance."""
    probabilities = scores.softmax(-1)
    for shift in (0.0, -tolerance.coin, tolerance.coin):
        for near in (0.0, -tolerance.gap, tolerance.gap):
            yield _filtered(probabilities, scores, params, shift, near)


def _filtered(
    probabilities: Tensor, scores: Tensor, params: SamplingParams, shift: float, near: float
) -> Tensor:
    """top-k, then top-p over what is left, then min-p; `shift` moves top-p's edge, `near` the others'."""
    kept = probabilities.clone()
    if 0 < params.top_k < len(kept):
        edge = scores.topk(params.top_k).values[-1]
        kept[scores < edge - near] = 0
    if params.top_p < 1:
        order = kept.argsort(descending=True, stable=True)
        share = kept[order] / kept.sum()
        before = share.cumsum(-1) - share  # mass of the likelier ones: a token stays while it is below top_p
        outside = before >= params.top_p + shift
        outside[0] = False
        kept[order[outside]] = 0
    if params.min_p > 0:
        kept[probabilities < params.min_p * probabilities.max() * (1 - near)] = 0
    return kept


def _edge_distance(weights: Tensor, coin: float, token: int) -> float:
    """From the coin to the token's interval of the normalised running sum; infinite without weight."""
    if weights[token] <= 0:
        return NEVER
    edges = weights.cumsum(-1) / weights.sum()
    high = float(edges[token])
    low = float(edges[token - 1]) if token else 0.0
    return max(low - coin, coin - high, 0.0)
