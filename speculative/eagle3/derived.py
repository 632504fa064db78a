"""The shape of a draft that nobody trained, derived from its target's. Free of torch.

Knows shapes, no weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import UserError
from engine.models.shape import ModelShape
from speculative.eagle3.fit import usual_layers
from speculative.eagle3.shape import AuxStates, Eagle3Shape


def derived_shape(target: ModelShape, **sizes: Any) -> Eagle3Shape:
    """The target's sizes, one layer, a quarter of its vocabulary, its early, middle and late states.

    sizes: fields of Eagle3Shape, and of its layer (a ModelShape), that differ.
    """
    layer_fields, own_fields = set(ModelShape.__dataclass_fields__), set(Eagle3Shape.__dataclass_fields__)
    unknown = sizes.keys() - layer_fields - own_fields
    if unknown:
        raise UserError(f"a random draft has no size {', '.join(sorted(unknown))}")
    plain = {"architecture": "EAGLE3", "num_layers": 1, "tied": False, "qkv_bias": False, "qk_norm": False}
    plain |= {"o_bias": False, "sliding_window": None}
    layer = replace(target, **{**plain, **{k: v for k, v in sizes.items() if k in layer_fields}})
    layers = _spread_layers(target.num_layers)
    shape = Eagle3Shape(
        layer=layer,
        draft_vocab=max(1, target.vocab_size // 4),
        target_hidden=target.hidden_size,
        aux=AuxStates(len(layers), layers),
    )
    return replace(shape, **{k: v for k, v in sizes.items() if k in own_fields})


def _spread_layers(num_layers: int) -> tuple[int, ...]:
    """The usual layers, or those that a target too shallow for them has."""
    usual = usual_layers(num_layers)
    if 0 < usual[0] < usual[1] < usual[2]:
        return usual
    return tuple(sorted({1, max(1, num_layers // 2), num_layers}))
