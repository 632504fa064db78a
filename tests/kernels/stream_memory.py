"""Shared memory of an emulated program, and the barriers that its bulk copies report to.

Each element remembers who touched it since the last barrier and fence; what would be a race, or a wait
without end, fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from direct_emulation import Lanes, lanes

# What an element went through. WROTE, FENCED: by threads, which the matrix units and copies see after a fence
# and then a barrier. ASKED, TAKEN: by the matrix units, which have, or have not, ended for the warp itself.
EMPTY, FLIGHT, WROTE, FENCED, READ, ASKED, TAKEN = (1 << bit for bit in range(7))


@dataclass(frozen=True)
class Shared:
    """A view of shared memory."""

    data: np.ndarray
    state: np.ndarray

    @classmethod
    def empty(cls, shape: list[int]) -> Shared:
        return cls(np.full(shape, np.nan), np.full(shape, EMPTY, np.uint8))

    def index(self, at: Any) -> Shared:
        assert 0 <= int(at) < len(self.data)
        return Shared(self.data[int(at)], self.state[int(at)])

    def slice(self, start: int, length: int) -> Shared:
        assert 0 <= start <= start + length <= len(self.data)
        return Shared(self.data[start : start + length], self.state[start : start + length])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.transpose(order), self.state.transpose(order))

    def store(self, values: Any) -> None:
        assert self.data.shape == values.shape
        self._free_of(FLIGHT | ASKED | TAKEN, "written while a copy or a product uses it")
        self.data[...] = values
        self.state[...] = WROTE

    def load(self, layout: Any) -> Lanes:
        self._free_of(FLIGHT | EMPTY, "read before it is there")
        self.state[...] |= READ
        return lanes(self.data.copy())

    def ask(self) -> None:
        """For the matrix units."""
        self._free_of(FLIGHT | EMPTY | WROTE | FENCED, "multiplied before it is there")
        self.state[...] |= ASKED

    def asked(self) -> None:
        """The units have read it, as far as one warp knows."""
        self.state[...] = np.where(self.state & ASKED, self.state & ~np.uint8(ASKED) | TAKEN, self.state)

    def begin_copy(self) -> None:
        self._free_of(255 - EMPTY, "copied into while others use it")
        self.state[...] = FLIGHT
        self.data[...] = np.nan

    def end_copy(self, values: np.ndarray) -> None:
        self.data[...] = values
        self.state[...] = 0

    def fence(self) -> None:
        self.state[...] = np.where(self.state & WROTE, FENCED | self.state & ~np.uint8(WROTE), self.state)

    def barrier(self) -> None:
        self.state[...] &= ~np.uint8(FENCED | READ | TAKEN)

    def _free_of(self, flags: int, why: str) -> None:
        assert not (self.state & np.uint8(flags)).any(), why


@dataclass
class Pending:
    """A product that the units may still be computing."""

    values: Lanes
    done: bool = False

    def result(self) -> Lanes:
        assert self.done, "a result before the wait for it"
        return self.values


@dataclass
class Barrier:
    """One barrier: phases that ended, bytes that this one waits for, copies on their way."""

    ready: bool = False
    ended: int = 0
    armed: bool = False
    wanted: int = 0
    copies: list[tuple[Shared, np.ndarray]] = field(default_factory=list)

    def init(self, count: int) -> None:
        assert (count, self.ready) == (1, False)
        self.ready = True

    def expect(self, size: Any, pred: Any = True) -> None:
        if pred:
            assert self.ready
            assert not self.armed, "a second arrival in one phase"
            self.armed, self.wanted = True, int(size)

    def copy(self, target: Shared, values: np.ndarray) -> None:
        assert self.armed, "bytes that none expects"
        target.begin_copy()
        self.copies.append((target, values))

    def wait(self, phase: Any) -> None:
        """Nothing has landed before, where the barrier's phase lets a program through all the same."""
        assert self.ready
        if self.ended % 2 != int(phase):
            return
        landed = sum(2 * values.size for _, values in self.copies)  # of 16-bit elements
        assert self.armed, "a wait without end: nothing is on its way"
        assert landed == self.wanted, "a wait without end, or too short: other bytes than expected"
        for target, values in self.copies:
            target.end_copy(values)
        self.copies, self.armed, self.ended = [], False, self.ended + 1


@dataclass(frozen=True)
class Barriers:
    each: list[Barrier]

    def index(self, at: Any) -> Barrier:
        assert 0 <= int(at) < len(self.each)
        return self.each[int(at)]
