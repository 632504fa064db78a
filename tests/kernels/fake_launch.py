"""Launchers of kernels in CUDA C++ without a driver: what a kernel is asked for, and what with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from engine.kernel_choices.plans import Plan
from kernels.cuda import driver


@dataclass
class Launched:
    """A kernel that is neither compiled nor run. early: of each launch."""

    built: int = 0
    prepared: int = 0
    launches: list[tuple[int, Sequence[Any]]] = field(default_factory=list)
    early: list[bool] = field(default_factory=list)

    def build(self) -> None:
        self.built += 1

    def prepare(self) -> None:
        self.prepared += 1

    def __call__(self, grid: int, args: Sequence[Any], *, early: bool = False) -> None:
        self.launches.append((grid, args))
        self.early.append(early)


@dataclass
class Fake:
    """kernels: by (dtype, bias, stages)."""

    kernels: dict[tuple[torch.dtype, bool, int], Launched] = field(default_factory=dict)

    def kernel(self, plan: Plan, dtype: torch.dtype, bias: bool) -> Launched:
        return self.kernels.setdefault((dtype, bias, plan.stages), Launched())


def faked(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """The driver is asked for nothing; a map says what it was asked for."""
    found = Fake()

    def tensor_map(tensor: torch.Tensor, *rest: Any) -> Any:
        return SimpleNamespace(at=tensor.data_ptr(), asked=rest)

    monkeypatch.setattr(launcher, "_kernel", found.kernel)
    monkeypatch.setattr(driver, "tensor_map", tensor_map)
    return found
