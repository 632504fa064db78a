"""Tensors at addresses that stay: where a backend leaves what it planned for a captured pass.

Knows no backend. Importable without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class FixedPlaces:
    """One place for each name, shape and dtype; a graph that reads it sees what was put there last."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, Any, Any], Tensor] = {}

    def put(self, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor to its place, in stream order, and return that."""
        key = name, tensor.shape, tensor.dtype
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = tensor.clone()
        else:
            place.copy_(tensor)
        return place
