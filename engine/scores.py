"""How likely a model finds given tokens: log-probabilities by whole prefills, several sequences at a time.

Knows states and logits of a model (engine.target_states); nothing of requests or of generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from engine.target_states import TargetStates

TOKENS = 4096  # of a pass, at most, unless one sequence alone is longer
ROWS = 256  # logits made at a time: a vocabulary of 128,000 in fp32 takes half a megabyte a row


@dataclass(frozen=True)
class Scored:
    """logprobs: of each scored token, given all before it. greedy: whether each is the likeliest."""

    logprobs: tuple[float, ...]
    greedy: tuple[bool, ...]


@dataclass(frozen=True)
class Asked:
    """ids: a whole sequence, two tokens or more. start: place of the first token to score, 1 or more."""

    ids: tuple[int, ...]
    start: int


def score(states: TargetStates, asked: Sequence[Asked]) -> list[Scored]:
    """Log-probabilities (fp32, natural) of the tokens from `start` on, sequence by sequence, in order."""
    return [scored for batch in _batches(asked) for scored in _pass(states, batch)]


def _batches(asked: Sequence[Asked]) -> Iterator[list[Asked]]:
    """Neighbours, as many as fit a pass."""
    batch: list[Asked] = []
    for one in asked:
        if batch and sum(len(other.ids) for other in batch) + len(one.ids) > TOKENS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


@torch.inference_mode()
def _pass(states: TargetStates, batch: Sequence[Asked]) -> list[Scored]:
    read = [one.ids[:-1] for one in batch]  # nothing follows the last token
    flat = torch.tensor([token for ids in read for token in ids], device=states.device)
    hidden, _ = states.states(flat, [len(ids) for ids in read])
    begins = accumulate((len(ids) for ids in read), initial=0)
    rows = [begin + place for begin, one in zip(begins, batch, strict=False) for place in _places(one)]
    wanted = [token for one in batch for token in one.ids[one.start :]]
    logprobs, greedy = _rows(states, hidden[torch.tensor(rows, device=states.device)], wanted)
    counts = list(accumulate((len(one.ids) - one.start for one in batch), initial=0))
    return [Scored(tuple(logprobs[a:b]), tuple(greedy[a:b])) for a, b in pairwise(counts)]


def _places(one: Asked) -> range:
    """Inputs of a sequence whose logits say something of a scored token."""
    return range(one.start - 1, len(one.ids) - 1)


def _rows(states: TargetStates, hidden: Tensor, wanted: Sequence[int]) -> tuple[list[float], list[bool]]:
    """hidden [N, H], the N tokens that follow -> their log-probabilities, and whether they are the best."""
    logprobs: list[float] = []
    greedy: list[bool] = []
    tokens = torch.tensor(list(wanted), device=hidden.device)
    for first in range(0, len(wanted), ROWS):
        logits = states.logits(hidden[first : first + ROWS])
        target = tokens[first : first + ROWS].unsqueeze(1)
        own = logits.gather(1, target).squeeze(1)
        logprobs += (own - logits.logsumexp(-1)).tolist()
        greedy += (logits.argmax(-1) == target.squeeze(1)).tolist()
    return logprobs, greedy
