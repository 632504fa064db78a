"""Makes a launch that would wait for a CUDA device raise. Knows nothing of what is launched."""

from __future__ import annotations

import pytest
import torch

from engine.batch import ScheduledStep
from engine.executor import Executor
from engine.futures import StepHandle


def forbid_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """From preparing to launching a decode step, a call that would synchronise raises."""
    launch = Executor.launch

    def watched(self: Executor, step: ScheduledStep) -> StepHandle:
        if step.width == 0:
            return launch(self, step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(self, step)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Executor, "launch", watched)
