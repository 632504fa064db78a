"""Sizes of the per-request sampling columns and what they cost. Free of torch, so that memory plans can
read it."""

from __future__ import annotations

MAX_USER_STOP_IDS = 16  # stop_token_ids of a request
MAX_STOP_IDS = 24  # those and the model's own end ids
MAX_BIASES = 512  # logit_bias entries of a request
MAX_LOGPROBS = 20  # best k reported beside a token

_WORD = 4
_SCALARS = 7 + 2 + 3  # floats and top_k; key (two words); min_len, max_len and max_drafts


def column_bytes(rows: int, vocab_size: int, penalties: bool) -> int:
    """Device bytes of SamplingColumns for `rows` table rows; `penalties` adds counts for the whole
    vocabulary."""
    per_row = _WORD * (_SCALARS + MAX_STOP_IDS + 2 * MAX_BIASES)
    if penalties:
        per_row += vocab_size * (_WORD + 1)
    return rows * per_row
