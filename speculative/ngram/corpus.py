"""A corpus as one array of tokens, with the order in which a context is found in it by binary search.

Built once on the host with numpy. Knows token ids, no search and no request; free of torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from speculative.ngram.reading import corpus_problems, documents

log = logging.getLogger("syncless")

BREAK = -1  # stands between documents: equals no token, and nothing continues over it
_REPORT_TOKENS = 1_000_000


@dataclass(frozen=True)
class Corpus:
    """tokens: int32 [N], documents with BREAK between them and max_match BREAKs in front, so that every
    context can be read. order: int32 [E], the places with a next token, sorted by the context that ends
    there, read backwards (of equal contexts the earlier place first)."""

    tokens: NDArray[np.int32]
    order: NDArray[np.int32]


def read_corpus(
    paths: tuple[str, ...], encode: Callable[[str], list[int]], *, max_match: int, limit: int
) -> Corpus:
    """Read, tokenise and sort the files. UserError when they cannot be read, hold nothing, or hold more
    than `limit` tokens."""
    problems = corpus_problems(paths)
    if problems:
        raise UserError("\n".join(problems))
    begin = time.perf_counter()
    tokens = _encode(paths, encode, max_match, limit)
    corpus = build_corpus(tokens, max_match)
    if not corpus.order.size:
        raise UserError(
            f"spec.corpus={', '.join(paths)} holds no two tokens of text in a row; use a file with text, or "
            "spec.corpus=null"
        )
    seconds = time.perf_counter() - begin
    log.info("corpus of %d tokens read and sorted in %.1f s", corpus.order.size, seconds)
    return corpus


def _encode(
    paths: tuple[str, ...], encode: Callable[[str], list[int]], front: int, limit: int
) -> NDArray[np.int32]:
    parts = [np.full(front, BREAK, np.int32)]
    count = reported = 0
    for path, document in ((name, document) for name in paths for document in documents(name)):
        for piece in document:
            parts.append(np.asarray(encode(piece), dtype=np.int32))
            count += parts[-1].size
            if count > limit:
                raise UserError(
                    f"spec.corpus={path} brings the corpus to more than spec.corpus_limit={limit} tokens; "
                    "use a smaller file, or set spec.corpus_limit higher (8 bytes a token on the device)"
                )
            if count - reported >= _REPORT_TOKENS:
                reported = count
                log.info("reading the corpus: %d tokens", count)
        parts.append(np.full(1, BREAK, np.int32))
    return np.concatenate(parts)


def join(docs: Iterable[Iterable[int]], max_match: int) -> NDArray[np.int32]:
    """Documents of token ids in the layout of Corpus.tokens."""
    parts = [np.full(max_match, BREAK, np.int32)]
    for doc in docs:
        parts += [np.fromiter(doc, np.int32), np.full(1, BREAK, np.int32)]
    return np.concatenate(parts)


def build_corpus(tokens: NDArray[np.int32], max_match: int) -> Corpus:
    """Sort the places of `tokens` by the `max_match` tokens that end there, read backwards.

    Prefix doubling (Manber & Myers 1993, sec. 3), turned round and stopped at that depth: each round sorts
    by twice as many tokens, as pairs of ranks.
    """
    rank = _dense(tokens.astype(np.int64))
    depth = 1
    while depth < max_match:
        step = min(depth, max_match - depth)
        earlier = np.zeros_like(rank)
        earlier[step:] = rank[:-step] + 1
        rank = _dense(rank * (rank.size + 2) + earlier)
        depth += step
    order = np.argsort(rank, kind="stable")
    known = np.zeros(tokens.size, dtype=bool)
    known[:-1] = (tokens[:-1] != BREAK) & (tokens[1:] != BREAK)
    return Corpus(tokens, order[known[order]].astype(np.int32))


def _dense(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of each value among the distinct ones."""
    inverse: NDArray[np.int64] = np.unique(key, return_inverse=True)[1].astype(np.int64)
    return inverse.reshape(-1)
