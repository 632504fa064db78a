"""The schema of the root config: the few scalars that belong to no part. Knows no group and no part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.build import number
from engine.typed import merge

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class RootConfig:
    """Scalars of the root. prompt "-": standard input. seed None: fresh. threads None: torch's choice.
    step_costs: "cached", "measure" or a file. kernels: "auto", "torch" or a file. record: whether the run
    folder keeps the course of its engines."""

    prompt: str | None = None
    seed: int | None = number(None, ge=0, lt=2**63)
    device: str = "auto"
    threads: int | None = number(None, ge=1, le=4096)
    step_costs: str = "cached"
    kernels: str = "auto"
    record: bool = True


def root_problems(scalars: Mapping[str, Any]) -> list[str]:
    """Every problem of the root's scalars (the config without its groups), one clause each."""
    root, problems = merge(RootConfig, scalars, "")
    if isinstance(scalars.get("prompt"), str) and not scalars["prompt"].strip():
        problems.append("prompt is empty; give it text, or leave it out to run the workload's prompts")
    if root is not None and not is_device(root.device):
        problems.append(f"device={root.device} is not one of auto, cpu, cuda, cuda:N")
    return problems


def is_device(name: object) -> bool:
    """Whether the text names a device as the root's `device` does."""
    return isinstance(name, str) and _DEVICE.fullmatch(name) is not None
