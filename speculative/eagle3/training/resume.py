"""Checkpoints of a run that is not over: weights in fp32, optimizer, place in the data. Knows no training."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.errors import UserError
from speculative.eagle3.training.optimizer import Optimizers
from speculative.eagle3.training.trainer import STATE

logger = logging.getLogger("syncless")


def save_state(folder: Path, net: nn.Module, optimizer: Optimizers, place: dict[str, Any]) -> None:
    """Write whole or not at all. A checkpoint that cannot be written (a full disk, a folder that is gone) is
    told and missing, no reason to lose the training."""
    path, partial = folder / STATE, folder / f".{STATE}.partial"
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "place": dict(place)}
    try:
        torch.save(state, partial)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # the latter are those of torch's own file writer
        logger.warning("the checkpoint %s cannot be written, training goes on without: %s", path, error)
        with contextlib.suppress(OSError):
            partial.unlink()


def load_state(path: Path, net: nn.Module, optimizer: Optimizers, device: torch.device) -> dict[str, Any]:
    """Fill `net` and `optimizer`; the place. UserError for a file of another run or of none."""
    file = path / STATE if path.is_dir() else path
    try:
        state = torch.load(file, map_location=device, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        return dict(state["place"])
    except OSError as error:
        raise UserError(f"cannot read the checkpoint {file}: {error.strerror or error}") from error
    except Exception as error:  # torch, pickle and shape errors have no common base
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"{file} is no checkpoint of this training run: {reason}") from error
