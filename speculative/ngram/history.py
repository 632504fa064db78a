"""Longest-suffix match over a request's own tokens in plain torch: the reference of kernels/ngram_match.py.

Prompt lookup decoding (Saxena 2023), LLMA (Yang et al. 2023, sec. 3). Works on the device table; nothing is
read on the host, sizes come from the bounds.
Legend: B requests, K continuations, L positions looked at, M tokens of context compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from speculative.base import DraftView
from speculative.ngram.drafts import Found, MatchOptions

_WORD = 8  # comparisons that are read as one 64-bit integer


@dataclass(frozen=True)
class Matches:
    """length: int32 [B, K] tokens matched, 0 for none. end: int64 [B, K] position of the last of them, below
    the last known position; 0 where there is none."""

    length: Tensor
    end: Tensor


class TorchHistory:
    """The lookup in the request's own tokens."""

    def __init__(self, options: MatchOptions, vocab_size: int) -> None:
        self._options = options
        self._vocab = vocab_size

    def find(self, view: DraftView, branches: int, depth: int) -> Found:
        return continued(view, match_suffix(view, self._options, branches, self._vocab), depth)


def continued(view: DraftView, matches: Matches, depth: int) -> Found:
    """The `depth` tokens after each match. Where the known tokens end, the continuation goes on in itself: a
    text that repeats with period p is continued with period p."""
    end = matches.end.unsqueeze(2)
    period = view.seq_lens.device.long().view(-1, 1, 1) - end
    step = torch.arange(depth, device=end.device)
    tokens = view.tokens[view.rows.view(-1, 1, 1), end + 1 + step % period.clamp_min(1)]
    return Found(matches.length, torch.where(matches.length.unsqueeze(2) > 0, tokens, -1))


def match_suffix(view: DraftView, options: MatchOptions, branches: int, vocab_size: int) -> Matches:
    """Where the last known tokens of each request occur before: the longest match of min_match..max_match
    tokens that is not the end itself; of several the last one, or the last with the most common next token.
    Each further continuation is the best one that starts with another token.
    """
    lens = view.seq_lens.device.unsqueeze(1)
    reach = max(1, view.seq_lens.max_bound)  # a match ends at 0 .. reach - 1
    position = torch.arange(1, reach + 1, dtype=torch.int32, device=lens.device)  # of the token after it
    words, following = _compared(view, reach, options.max_match)
    open_ = position <= lens
    found = []
    for branch in range(branches):
        length, places = _longest(words, open_, options)
        if options.frequent:
            places = _most_common(places, following, vocab_size)
        after = (places * position).amax(1, keepdim=True).long()  # 0: no place
        found.append((length, (after - 1).clamp_min(0)))
        if branch + 1 < branches:
            taken = torch.where(after > 0, following.gather(1, (after - 1).clamp_min(0)), -1)
            open_ = open_ & (following != taken)
    return Matches(torch.cat([n for n, _ in found], 1), torch.cat([end for _, end in found], 1))


def _compared(view: DraftView, reach: int, max_match: int) -> tuple[list[Tensor], Tensor]:
    """(words, following). words: int64 [B, L], the latest 8 tokens of context first: byte 7 - j of the k-th is
    1 where the token 8k + j before the match's end equals the one 8k + j before the last known, so that more
    is a longer match. following: int32 [B, L] the token after each place."""
    deep = -(-max_match // _WORD) * _WORD
    batch, front = view.rows.numel(), deep - 1
    known = view.tokens.new_full((batch, front + reach + 1), -1)  # -1: before the first token
    known[:, front:] = view.tokens[view.rows, : reach + 1]
    back = torch.arange(deep, device=known.device)
    last = known.gather(1, view.seq_lens.device.long().unsqueeze(1) + back)  # [B, M]
    windows = known.unfold(1, deep, 1)[:, :reach]
    words = []
    for k in range(deep, 0, -_WORD):
        equal = windows[:, :, k - _WORD : k] == last[:, k - _WORD : k].unsqueeze(1)
        words.append(equal.contiguous().view(torch.int64).squeeze(2))
    return words, known[:, front + 1 :]


def _longest(words: list[Tensor], open_: Tensor, options: MatchOptions) -> tuple[Tensor, Tensor]:
    """(length int32 [B, 1], bool [B, L] the places that have it) among the open places, length 0 and no place
    below min_match."""
    length = torch.zeros(open_.shape[0], 1, dtype=torch.int64, device=open_.device)
    places, on = open_, None
    for k, word in enumerate(words):
        steps = _thresholds(min(_WORD, options.max_match - _WORD * k), word.device)
        value = word * places
        run = (value.amax(1, keepdim=True) >= steps[1:]).sum(1, keepdim=True)
        run = run if on is None else run * on
        places = value >= steps[run] if k == 0 else places & (value >= steps[run])
        length = length + run
        on = run == _WORD if on is None else on & (run == _WORD)
    enough = length >= options.min_match
    return (length * enough).int(), places & enough


@cache
def _thresholds(count: int, device: torch.device) -> Tensor:
    """int64 [count + 1]: the least word with the latest k tokens equal."""
    words = [int.from_bytes(bytes(_WORD - k) + b"\x01" * k, "little") for k in range(count + 1)]
    return torch.tensor(words, device=device)


def _most_common(places: Tensor, following: Tensor, vocab_size: int) -> Tensor:
    """bool [B, L]: those of the places whose next token is the most common one among them. Ties all stay."""
    index = following.clamp_min(0).long()
    votes = torch.zeros(places.shape[0], vocab_size, dtype=torch.int32, device=places.device)
    votes.scatter_add_(1, index, places.int())
    count = votes.gather(1, index) * places
    return places & (count == count.amax(1, keepdim=True))
