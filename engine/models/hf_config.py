"""From a checkpoint's config.json to a ModelShape. Free of torch.

Knows spellings and defaults of each supported architecture; refuses by name what the decoder cannot do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UserError
from engine.models.scaling import check_scaling, scaling_kind
from engine.models.shape import ModelShape


@dataclass(frozen=True)
class _Family:
    """What a config of this family means where it says nothing."""

    max_positions: int
    head_dim: int | None = None  # None: hidden size / heads
    kv_heads: int | None = None  # None: as many as heads
    qkv_bias: bool | None = None  # None: attention_bias decides
    o_bias: bool | None = None
    qk_norm: bool = False
    sliding_window: int | None = None
    window_switch: bool = False  # whether use_sliding_window has to be true as well


_FAMILIES = {
    "LlamaForCausalLM": _Family(2048),
    "MistralForCausalLM": _Family(4096 * 32, kv_heads=8, qkv_bias=False, o_bias=False, sliding_window=4096),
    "Qwen2ForCausalLM": _Family(
        32768, kv_heads=32, qkv_bias=True, o_bias=False, sliding_window=4096, window_switch=True
    ),
    "Qwen3ForCausalLM": _Family(
        32768, head_dim=128, kv_heads=32, qk_norm=True, sliding_window=4096, window_switch=True
    ),
}
ARCHITECTURES = tuple(_FAMILIES)
_BY_TYPE = {name.removesuffix("ForCausalLM").lower(): name for name in _FAMILIES}


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError when it cannot be read or is not an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # the latter: nested too deeply
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object")
    return found


def shape_from_config(config: Mapping[str, Any], where: str) -> ModelShape:
    """The shape that a config.json describes; `where` names the file in messages.

    Raises UserError for an unknown architecture, an option that is not supported, or a key that is missing.
    """
    reader = ConfigReader(config, where)
    architecture = _architecture(reader)
    family = _FAMILIES[architecture]
    refuse_unsupported(reader)
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    theta, scaling = rope_of(reader)
    attention_bias = bool(config.get("attention_bias", False))
    return ModelShape(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", family.kv_heads or heads),
        head_dim=reader.integer("head_dim", family.head_dim or hidden // heads),
        intermediate_size=reader.integer("intermediate_size"),
        max_positions=reader.integer("max_position_embeddings", family.max_positions),
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        qk_norm=family.qk_norm,
        o_bias=attention_bias if family.o_bias is None else family.o_bias,
        sliding_window=_window(config, family),
    )


class ConfigReader:
    """config.json with the file's name in every complaint."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; null counts as absent, and absent without a default is an error."""
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{self.where}: {key} is {value!r}, it has to be a positive integer")
        return value


def _architecture(config: ConfigReader) -> str:
    named = [str(name) for name in config.values.get("architectures") or ()]
    kind = str(config.values.get("model_type", ""))
    found = named or [_BY_TYPE.get(kind, kind or "none")]
    known: str | None = next((name for name in found if name in _FAMILIES), None)
    if known is None:
        raise UserError(
            f"{config.where} names the architecture {', '.join(found)}, which is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    return known


def refuse_unsupported(config: ConfigReader) -> None:
    """Raise UserError that lists the options which no decoder layer of ours computes."""
    values = config.values
    rotated = values.get("partial_rotary_factor", 1.0)
    problems = {
        f"hidden_act={values.get('hidden_act')}": values.get("hidden_act", "silu") not in ("silu", "swish"),
        "mlp_bias=true": bool(values.get("mlp_bias")),
        f"partial_rotary_factor={rotated}": rotated not in (None, 1, 1.0),
        "quantization_config (quantised safetensors)": values.get("quantization_config") is not None,
    }
    found = [name for name, is_there in problems.items() if is_there]
    if found:
        raise UserError(f"{config.where} asks for what is not supported: {', '.join(found)}")


def rope_of(config: ConfigReader) -> tuple[float, dict[str, Any]]:
    """(theta, scaling): top level as transformers 4 writes it, or in rope_parameters as 5 does.

    scaling is empty where there is none. Raises UserError for one that is not known.
    """
    nested = config.values.get("rope_parameters") or {}
    scaling = {**(config.values.get("rope_scaling") or {}), **nested}
    if any(isinstance(value, Mapping) for value in scaling.values()):
        raise UserError(f"{config.where}: rope_parameters differ by layer type, which is not supported")
    theta = scaling.pop("rope_theta", None) or config.values.get("rope_theta") or 10000.0
    check_scaling(scaling, config.where)
    return float(theta), {} if scaling_kind(scaling) == "default" else scaling


def _window(config: Mapping[str, Any], family: _Family) -> int | None:
    if family.sliding_window is None or (family.window_switch and not config.get("use_sliding_window")):
        return None
    window = config.get("sliding_window", family.sliding_window)
    return None if window is None else int(window)
