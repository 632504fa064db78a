"""The sampling distribution of one row in plain numpy float64, written for reading: the tests' oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from engine.sampling.asked import SamplingRow

Floats = NDArray[np.float64]


def shaped_logits(
    logits: Floats, row: SamplingRow, prompt: Sequence[int], output: Sequence[int], position: int
) -> Floats:
    """Bias, penalties and the min_tokens mask, one token at a time."""
    shaped = logits.astype(np.float64).copy()
    for token, bias in row.bias:
        shaped[token] += bias
    counts = Counter(output)
    for token in range(len(shaped)):
        if token in prompt or token in counts:
            factor = row.repetition_penalty
            shaped[token] = shaped[token] / factor if shaped[token] > 0 else shaped[token] * factor
        shaped[token] -= row.frequency_penalty * counts[token]
        shaped[token] -= row.presence_penalty * (token in counts)
    if position < row.min_len:
        shaped[list(row.stop_ids)] = -np.inf
    return shaped


def filtered(weights: Floats, top_k: int, top_p: float, min_p: float) -> Floats:
    """The probabilities left by top-k, top-p and min-p in turn; ties keep the lower ids."""
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if top_k:
        weights = _only(weights, order[:top_k])
    if top_p < 1:
        kept, mass = [], 0.0
        for token in order:
            if mass >= top_p * weights.sum():
                break
            kept.append(token)
            mass += weights[token]
        weights = _only(weights, kept)
    weights = np.where(weights >= min_p * weights.max(), weights, 0.0)
    return weights / weights.sum()


def _only(weights: Floats, kept: Sequence[int]) -> Floats:
    out = np.zeros_like(weights)
    out[list(kept)] = weights[list(kept)]
    return out


def distribution(
    logits: Floats,
    row: SamplingRow,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    position: int | None = None,
) -> Floats:
    """Probability of every token for a row with temperature > 0."""
    at = len(prompt) + len(output) if position is None else position
    shaped = shaped_logits(logits, row, prompt, output, at)
    return filtered(np.exp((shaped - shaped.max()) / row.temperature), row.top_k, row.top_p, row.min_p)


def chi_square_p(counts: Floats, expected_share: Floats) -> float:
    """p-value of observed counts; cells expecting fewer than 5 are pooled, impossible ones must be empty."""
    assert counts[expected_share == 0].sum() == 0, "a token of probability zero was drawn"
    expected = expected_share * counts.sum()
    big = expected >= 5
    seen, meant = list(counts[big]), list(expected[big])
    if expected[~big].sum() > 0:
        seen.append(counts[~big].sum())
        meant.append(expected[~big].sum())
    if len(seen) < 2:
        return 1.0
    return float(stats.chisquare(seen, np.array(meant) * (sum(seen) / sum(meant))).pvalue)
