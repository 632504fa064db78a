"""Cuts a ForwardBatch on a request boundary into two, by slices that host-known counts alone decide.

Knows every field of the batch, by name, and nothing of who runs the halves. A field that is not named here
fails, here and in a test, so that none is lost.
Legend: B requests, T tokens; the first half has `requests` and `tokens` of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.batch import ForwardBatch, Mode, SeqLens
from engine.errors import InternalError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from torch import Tensor

    D = TypeVar("D", bound=DataclassInstance)

ALIGNMENT = 16  # bytes: kernels are compiled anew for a pointer that is less aligned


@dataclass(frozen=True)
class Cut:
    """Size of the first half."""

    requests: int
    tokens: int


def middle(batch: ForwardBatch) -> Cut | None:
    """The boundary that balances the tokens; with as many tokens each, half the requests, the first half the
    larger. None: there is nothing to cut."""
    if batch.mode is Mode.IDLE or batch.size < 2:
        return None
    ends = list(itertools.accumulate(batch.query_lens))[:-1]
    half = batch.input_ids.shape[0] / 2
    at = min(range(len(ends)), key=lambda i: (abs(ends[i] - half), -i))
    return Cut(at + 1, ends[at])


@dataclass(frozen=True)
class Cutter:
    """Which passes are cut: those with so many requests and tokens at least."""

    min_requests: int
    min_tokens: int

    def parts(self, batch: ForwardBatch) -> tuple[ForwardBatch, ...]:
        """Two halves, or the batch as it is."""
        enough = batch.size >= self.min_requests and batch.input_ids.shape[0] >= self.min_tokens
        cut = middle(batch) if enough else None
        return (batch,) if cut is None else split(batch, cut)

    def whole(self, width: int) -> int:
        """Requests of the largest pass of `width` tokens each that stays as it is."""
        return max(self.min_requests - 1, (self.min_tokens - 1) // width)


def split(batch: ForwardBatch, cut: Cut) -> tuple[ForwardBatch, ForwardBatch]:
    """Both halves. Must run where what made the batch is ordered before: a few small copies are launched."""
    return _halves(batch, cut, BATCH)


Halves = tuple[Any, Any]
Rule = Callable[[Any, Cut], Halves]


def _halves(whole: D, cut: Cut, rules: Mapping[str, Rule]) -> tuple[D, D]:
    first, second = {}, {}
    for field in dataclasses.fields(whole):
        if field.name not in rules:
            raise InternalError(f"{type(whole).__name__}.{field.name} is neither split nor declared shared")
        first[field.name], second[field.name] = rules[field.name](getattr(whole, field.name), cut)
    return type(whole)(**first), type(whole)(**second)


def _by_request(value: Tensor | None, cut: Cut) -> Halves:
    return (None, None) if value is None else (value[: cut.requests], _aligned(value[cut.requests :]))


def _by_token(value: Tensor, cut: Cut) -> Halves:
    return value[: cut.tokens], _aligned(value[cut.tokens :])


def _starts(value: Tensor, cut: Cut) -> Halves:
    return value[: cut.requests + 1], value[cut.requests :] - cut.tokens


def _each(value: tuple[int, ...] | None, cut: Cut) -> Halves:
    return (None, None) if value is None else (value[: cut.requests], value[cut.requests :])


def _lens(value: SeqLens, cut: Cut) -> Halves:
    return _halves(value, cut, LENS)


def _shared(value: Any, cut: Cut) -> Halves:
    return value, value


def _joined(value: Any, cut: Cut) -> Halves:
    """Of the whole pass: it is read once the halves are one again."""
    return None, None


def _aligned(part: Tensor) -> Tensor:
    return part.clone() if part.data_ptr() % ALIGNMENT else part


LENS: Mapping[str, Rule] = {"device": _by_request, "bound": _each, "host": _each}
BATCH: Mapping[str, Rule] = {
    "mode": _shared,
    "rows": _by_request,
    "input_ids": _by_token,
    "positions": _by_token,
    "slots": _by_token,
    "seq_lens": _lens,
    "query_start": _starts,
    "query_lens": _each,
    "page_table": _shared,
    "width": _shared,
    "tree_mask": _by_request,
    "logit_rows": _joined,
    "page_size": _shared,
    "window_slots": _by_request,
    "planned": _shared,
}
