"""Does what is emitted follow the exact distribution? Runs of three tokens against float64 arithmetic."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from support.sampling_reference import distribution
from toy_target import Drafter, Loop, Rule, exact, toy_logits

from engine.params import SamplingParams

VOCAB = 8
PROMPT = (1, 3)
SAMPLES = 200_000


def run_counts(
    params: SamplingParams, drafter: Drafter, rule: Rule = exact, samples: int = SAMPLES
) -> np.ndarray:
    """float64 [V * V * V]: how often each run of three output tokens came up."""
    row = params.row(len(PROMPT), (), 0, 0, 1 << 20)
    loop = Loop.crowd(toy_logits(VOCAB), PROMPT, row, params.sampling_class(), samples, rule)
    goal = len(PROMPT) + 3
    counts = np.zeros(VOCAB**3)
    while len(loop.at):
        loop.step(drafter)
        done = loop.known >= goal
        a, b, c = loop.only(done).tokens[:, len(PROMPT) : goal].long().T
        counts += np.bincount(((a * VOCAB + b) * VOCAB + c).numpy(), minlength=VOCAB**3)
        loop = loop.only(~done)
    return counts


def exact_joint(params: SamplingParams) -> np.ndarray:
    """float64 [V * V * V]: the probability of each run, one token at a time."""
    table = toy_logits(VOCAB).double().numpy()
    row = params.row(len(PROMPT), (), 0, 0, 1 << 20)

    def after(*output: int) -> np.ndarray:
        known = (*PROMPT, *output)
        return distribution(table[known[-2], known[-1]], row, PROMPT, output)

    joint = np.zeros((VOCAB,) * 3)
    first = after()
    for a in range(VOCAB):
        second = after(a)
        for b in range(VOCAB):
            joint[a, b] = first[a] * second[b] * after(a, b)
    return joint.reshape(-1)


def p_value(counts: np.ndarray, joint: np.ndarray) -> float:
    """Of a chi-square test, cells that expect fewer than 5 pooled; 0 when something impossible was drawn."""
    if counts[joint == 0].any():
        return 0.0
    expected = joint * counts.sum()
    big = expected >= 5
    seen, meant = list(counts[big]), list(expected[big])
    if expected[~big].sum() > 0:
        seen.append(counts[~big].sum())
        meant.append(expected[~big].sum())
    return float(stats.chisquare(seen, np.array(meant) * (sum(seen) / sum(meant))).pvalue)


def accepted_share(params: SamplingParams, drafter: Drafter, rule: Rule = exact) -> float:
    """Accepted drafts a request of one step: a law test in which nothing is accepted would show nothing."""
    row = params.row(len(PROMPT), (), 0, 0, 1 << 20)
    loop = Loop.crowd(toy_logits(VOCAB), PROMPT, row, params.sampling_class(), 2000, rule)
    loop.step(drafter)
    return float(torch.stack(loop.accepted).float().mean())
