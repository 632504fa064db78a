"""The numbers of an EAGLE3 draft model, read from its checkpoint's config.json. Free of torch.

Knows the spellings in which public checkpoints say the same thing; knows no weights.
Source: Li et al. 2025 (EAGLE-3), sec. 3; the keys are those of SGLang, vLLM, SpecForge and speculators.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import UserError
from engine.models.hf_config import ConfigReader, refuse_unsupported, rope_of
from engine.models.shape import ModelShape

logger = logging.getLogger("syncless")

ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3DraftModel",
    "Eagle3Speculator",
    "LlamaForCausalLM",
)
IDS = "eagle_aux_hidden_state_layer_ids"
USUAL_STATES = 3


@dataclass(frozen=True)
class AuxStates:
    """Which hidden states of the target are fused.

    count: 0 for the final normalised state alone. layers: layers of the target whose INPUTS are read (layer
    i's input is the output of layer i - 1); None: not settled yet. outputs: the checkpoint's own ids, where
    it numbers outputs.
    """

    count: int = USUAL_STATES
    layers: tuple[int, ...] | None = None
    outputs: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Eagle3Shape:
    """One decoder layer over [embedding, hidden], and what surrounds it.

    layer: sizes of the draft itself, its own RoPE included; layer.vocab_size is the target's vocabulary.
    draft_vocab: outputs of the head; None: the checkpoint decides, or the head is the target's.
    target_hidden: width of the target's states; None: the draft's own. fc_norm: one norm for each fused
    state. norm_before_fc: one norm over all of them. norm_before_residual: the residual stream starts
    normalised. norm_output: the state that goes to the next draft step is normalised. (SpecForge's training
    option of that name means another thing: whether a norm stands before the head, here it always does.)

    """

    layer: ModelShape
    draft_vocab: int | None = None
    target_hidden: int | None = None
    aux: AuxStates = AuxStates()
    fc_norm: bool = False
    fc_bias: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False

    @property
    def states_width(self) -> int:
        """Columns of what is fused."""
        return (self.target_hidden or self.layer.hidden_size) * max(self.aux.count, 1)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Layers of the target whose inputs are read; empty: its final normalised state is."""
        return self.aux.layers or ()


def parse_shape(config: Mapping[str, Any], where: str) -> Eagle3Shape:
    """The shape that a config.json describes; `where` names the file in messages.

    Raises UserError for what is missing, contradictory, or would change the arithmetic and is not supported.
    """
    flat = _flattened(config)
    reader = ConfigReader(flat, where)
    _refuse(reader)
    theta, scaling = rope_of(reader)
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    biased = bool(flat.get("attention_bias"))
    layer = ModelShape(
        architecture="EAGLE3",
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=1,
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads),
        head_dim=reader.integer("head_dim", hidden // heads),
        intermediate_size=reader.integer("intermediate_size"),
        max_positions=reader.integer("max_position_embeddings", 2048),
        rms_eps=float(flat.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=bool(flat.get("tie_word_embeddings", False)),
        qkv_bias=biased,
        o_bias=biased,
    )
    logger.info("%s: the draft's own RoPE theta is %g, its scaling %s", where, theta, scaling or "none")
    return _checked(_around(layer, flat, reader), where)


def _around(layer: ModelShape, flat: Mapping[str, Any], reader: ConfigReader) -> Eagle3Shape:
    eagle = flat.get("eagle_config") or {}
    return Eagle3Shape(
        layer=layer,
        draft_vocab=_optional(reader, "draft_vocab_size"),
        target_hidden=_optional(reader, "target_hidden_size"),
        aux=_aux_states(flat, eagle, reader),
        fc_norm=bool(flat.get("fc_norm") or flat.get("use_aux_norm")),
        fc_bias=bool(flat.get("bias")),
        norm_before_fc=bool(flat.get("norm_before_fc", eagle.get("norm_before_fc"))),
        norm_before_residual=bool(flat.get("norm_before_residual")),
        norm_output=bool(flat.get("norm_output")),
    )


def _flattened(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A speculators config nests the layer's keys; there the residual starts normalised unless it says no."""
    nested = config.get("transformer_layer_config")
    if not isinstance(nested, Mapping):
        return config
    said = {key: value for key, value in config.items() if value is not None}
    return {"norm_before_residual": True, **nested, **said, "architectures": None}


def _optional(reader: ConfigReader, key: str) -> int | None:
    return None if reader.values.get(key) is None else reader.integer(key)


def _refuse(reader: ConfigReader) -> None:
    refuse_unsupported(reader)
    values, where = reader.values, reader.where
    named = [str(name) for name in values.get("architectures") or ()]
    if named and not any(name in ARCHITECTURES for name in named):
        raise UserError(
            f"{where} names the architecture {', '.join(named)}, which is no EAGLE3 draft that is supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    problems = {
        f"num_hidden_layers={values.get('num_hidden_layers')}": values.get("num_hidden_layers", 1) != 1,
        f"logit_scale={values.get('logit_scale')}": values.get("logit_scale", 1.0) not in (None, 1, 1.0),
        f"sliding_window={values.get('sliding_window')}": _slides(values),
        "fc_norm together with norm_before_fc": bool(values.get("fc_norm") and values.get("norm_before_fc")),
        "is_causal=false": values.get("is_causal") is False,
    }
    found = [name for name, there in problems.items() if there]
    if found:
        raise UserError(f"{where} asks for what the EAGLE3 draft does not do: {', '.join(found)}")


def _slides(values: Mapping[str, Any]) -> bool:
    if "sliding_attention" in (values.get("layer_types") or ()):
        return True
    return values.get("sliding_window") is not None and bool(values.get("use_sliding_window", True))


def _aux_states(flat: Mapping[str, Any], eagle: Mapping[str, Any], reader: ConfigReader) -> AuxStates:
    """eagle_config numbers outputs (SGLang, SpecForge); at the top level, as vLLM reads it, inputs."""
    if eagle.get("use_aux_hidden_state", True) is False:
        return AuxStates(count=0, layers=())
    outputs, inputs = _ids(eagle.get(IDS), reader.where), _ids(flat.get(IDS), reader.where)
    if outputs and inputs and tuple(i + 1 for i in outputs) != inputs:
        raise UserError(
            f"{reader.where}: {IDS} is {list(inputs)} at the top level (inputs of layers), {list(outputs)} "
            "in eagle_config (outputs), which are different states; remove the wrong one"
        )
    given = outputs or inputs
    count = reader.integer("num_aux_hidden_states", len(given) if given else USUAL_STATES)
    if given and len(given) != count:
        raise UserError(
            f"{reader.where}: num_aux_hidden_states is {count}, but {IDS} names {len(given)} layers"
        )
    return AuxStates(count, inputs or None, outputs or None)


def _ids(value: object, where: str) -> tuple[int, ...]:
    """Ascending distinct ids; empty for null or an empty list."""
    if value is None or value == []:
        return ()
    if not isinstance(value, list | tuple) or not all(type(i) is int and i >= 0 for i in value):
        raise UserError(f"{where}: {IDS} is {value!r}, it has to be a list of layer numbers from 0 on")
    if sorted(set(value)) != list(value):
        raise UserError(
            f"{where}: {IDS} is {list(value)}; states are fused in ascending order, list them so, once each"
        )
    return tuple(value)


def _checked(shape: Eagle3Shape, where: str) -> Eagle3Shape:
    layer = shape.layer
    if layer.num_heads % layer.num_kv_heads or layer.head_dim % 2:
        raise UserError(
            f"{where}: {layer.num_heads} heads of size {layer.head_dim} over {layer.num_kv_heads} KV heads "
            "do not work; heads must be a multiple of KV heads, their size even"
        )
    own, vocab = shape.draft_vocab or layer.vocab_size, layer.vocab_size
    if own > vocab or (layer.tied and own != vocab):
        raise UserError(
            f"{where}: draft_vocab_size {own} does not go with vocab_size {vocab}: it must not exceed it, "
            "and equals it where tie_word_embeddings makes the embedding the head"
        )
    return shape


def with_aux_layers(shape: Eagle3Shape, layers: tuple[int, ...]) -> Eagle3Shape:
    """The shape with the layers settled."""
    return replace(shape, aux=AuxStates(len(layers), layers))
