"""Whether a draft model belongs to a target, and which of its layers it reads. Free of torch.

Knows both shapes, no weights.
"""

from __future__ import annotations

import logging

from engine.errors import UserError
from engine.models.shape import ModelShape
from speculative.eagle3.shape import IDS, USUAL_STATES, Eagle3Shape, with_aux_layers

logger = logging.getLogger("syncless")


def usual_layers(num_layers: int) -> tuple[int, ...]:
    """Layers whose inputs a draft reads unless it says otherwise: early, middle, late (EAGLE-3, sec. 3.1)."""
    return (2, num_layers // 2, num_layers - 3)


def fit_to(shape: Eagle3Shape, target: ModelShape, name: str, where: str) -> Eagle3Shape:
    """The shape with its aux layers settled for `target`, which messages call `name`.

    Raises UserError for a draft of another target. Warns, naming them, when the layers had to be guessed:
    wrong layers give correct text and no speed.
    """
    _check_sizes(shape, target, name, where)
    layers = _settled(shape, target, where)
    if layers and layers[-1] > target.num_layers:
        raise UserError(
            f"{where} is a draft for another target: it reads the output of layer {layers[-1] - 1}, but "
            f"{name} has {target.num_layers} layers, numbered from 0"
        )
    return with_aux_layers(shape, layers)


def _check_sizes(shape: Eagle3Shape, target: ModelShape, name: str, where: str) -> None:
    sizes = {
        "hidden states of size": (shape.target_hidden or shape.layer.hidden_size, target.hidden_size),
        "a vocabulary of": (shape.layer.vocab_size, target.vocab_size),
    }
    wrong = [f"{what} {its}, not {theirs}" for what, (its, theirs) in sizes.items() if its != theirs]
    if wrong:
        raise UserError(
            f"{where} is a draft for another target: it expects {' and '.join(wrong)} as {name} has; "
            "choose the draft that was trained for this model"
        )


def _settled(shape: Eagle3Shape, target: ModelShape, where: str) -> tuple[int, ...]:
    aux, usual = shape.aux, usual_layers(target.num_layers)
    if aux.layers is not None:
        return aux.layers
    if aux.outputs == usual:
        logger.warning(
            "%s: %s is %s, the usual set counted as inputs of layers; it is read so, although ids in "
            "eagle_config count outputs",
            where, IDS, list(usual),
        )  # fmt: skip
        return usual
    if aux.outputs is not None:
        return tuple(i + 1 for i in aux.outputs)
    return _guessed(shape, target, where)


def _guessed(shape: Eagle3Shape, target: ModelShape, where: str) -> tuple[int, ...]:
    usual = usual_layers(target.num_layers)
    if shape.aux.count != USUAL_STATES or not 0 < usual[0] < usual[1] < usual[2]:
        raise UserError(
            f"{where} does not say which layers of the target it reads, and {shape.aux.count} of "
            f"{target.num_layers} layers cannot be guessed; set eagle_config.{IDS} in its config.json"
        )
    logger.warning(
        "%s does not say which layers of the target it reads; guessed: the outputs of layers %s. If the "
        "accept length is near 1, set eagle_config.%s in its config.json",
        where, ", ".join(str(i - 1) for i in usual), IDS,
    )  # fmt: skip
    return usual
