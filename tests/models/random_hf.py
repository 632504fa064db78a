"""Models of transformers with random weights: the oracles of loaders."""

from __future__ import annotations

from typing import Any

import torch
import transformers


def random_model(family: str, seed: int, **sizes: Any) -> Any:
    """Random weights everywhere, so that a forgotten norm or bias shows. family: as transformers has it."""
    config = getattr(transformers, f"{family}Config")(**sizes)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name else 0.0))
    return model
