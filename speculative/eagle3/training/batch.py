"""One batch of training text on the device: padded ids, and which rows learn from which.

Knows the alignment of the unrolled steps; computes nothing. Legend: B sequences, L positions of the longest,
P a sequence's prompt length, n its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speculative.eagle3.training.data import Ids, TextStore


@dataclass(frozen=True)
class StepRows:
    """student: int64 [m] rows of the flattened [B * L] batch that are trained at this step. teacher: int64
    [m] the teacher row of each."""

    student: Tensor
    teacher: Tensor


@dataclass(frozen=True)
class TextBatch:
    """ids: int64 [B, L + unroll + 1], zero padded: step k of row t embeds ids[:, t + 1 + k]. ragged: int64
    [T] the same without padding, of `lengths`. place: int64 [T], where each is in the flattened [B * L].
    teachers: int64 [N] ragged positions whose next-token law is learnt. steps: one entry an unrolled step.
    counts: host-side number of rows a step."""

    ids: Tensor
    ragged: Tensor
    lengths: tuple[int, ...]
    place: Tensor
    teachers: Tensor
    steps: tuple[StepRows, ...]
    counts: tuple[int, ...]

    @property
    def longest(self) -> int:
        return max(self.lengths)


def make_batch(
    store: TextStore, chosen: Ids, unroll: int, device: torch.device, *, prompts_too: bool = False
) -> TextBatch:
    """The sequences `chosen` of the store.

    Row t of step k predicts the token at t + 2 + k; its teacher is the target at t + 1 + k (peers of a chain
    that starts at t). Rows from P - 1 on are trained: the first is where serving begins to draft.
    prompts_too: all rows are, since the target has an opinion about every token.
    """
    texts = [store.ids(int(i)) for i in chosen]
    prompts = [1 if prompts_too else int(store.prompts[i]) for i in chosen]
    lengths = [len(text) for text in texts]
    longest = max(lengths)
    ids = np.zeros((len(texts), longest + unroll + 1), dtype=np.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    steps = tuple(_step_rows(lengths, prompts, longest, step) for step in range(unroll))
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    teachers = _joined([starts[b] + np.arange(prompts[b], lengths[b] - 1) for b in range(len(texts))])
    place = _joined([b * longest + np.arange(lengths[b]) for b in range(len(texts))])

    def up(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return TextBatch(
        ids=up(ids),
        ragged=up(np.concatenate(texts).astype(np.int64)),
        lengths=tuple(lengths),
        place=up(place),
        teachers=up(teachers),
        steps=tuple(StepRows(up(student), up(teacher)) for student, teacher in steps),
        counts=tuple(len(student) for student, _ in steps),
    )


def _step_rows(lengths: list[int], prompts: list[int], longest: int, step: int) -> tuple[Ids, Ids]:
    """Student rows t = P - 1 .. n - 3 - step, and their places among the teacher rows P .. n - 2."""
    student, teacher, offset = [], [], 0
    for b, (length, prompt) in enumerate(zip(lengths, prompts, strict=True)):
        rows = np.arange(prompt - 1, length - 2 - step)
        student.append(b * longest + rows)
        teacher.append(offset + rows + 1 + step - prompt)
        offset += length - 1 - prompt
    return _joined(student), _joined(teacher)


def _joined(parts: list[Ids]) -> Ids:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
