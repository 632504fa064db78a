"""The tensors that an architecture has, by name and shape, and the strict check of what a file holds.

Names are those of Hugging Face checkpoints; readers of other formats translate into them. Free of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from engine.errors import UserError
from engine.models.shape import ModelShape

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
# Buffers that old exports stored although they follow from the config.
IGNORED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.self_attn\.(masked_)?bias$")
_LISTED = 6


def layer_prefix(index: int) -> str:
    return f"model.layers.{index}."


def expected_tensors(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """name -> shape of every tensor that a checkpoint of `shape` must hold."""
    found: dict[str, tuple[int, ...]] = {EMBED: (shape.vocab_size, shape.hidden_size)}
    for index in range(shape.num_layers):
        found |= {layer_prefix(index) + name: size for name, size in _layer(shape).items()}
    found[FINAL_NORM] = (shape.hidden_size,)
    if not shape.tied:
        found[HEAD] = (shape.vocab_size, shape.hidden_size)
    return found


def _layer(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    hidden, inner, q_size, kv_size = shape.hidden_size, shape.intermediate_size, shape.q_size, shape.kv_size
    outputs = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    found: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    found |= {f"self_attn.{name}.weight": (size, hidden) for name, size in outputs.items()}
    if shape.qkv_bias:
        found |= {f"self_attn.{name}.bias": (size,) for name, size in outputs.items()}
    if shape.qk_norm:
        found |= {f"self_attn.{name}.weight": (shape.head_dim,) for name in ("q_norm", "k_norm")}
    found["self_attn.o_proj.weight"] = (hidden, q_size)
    if shape.o_bias:
        found["self_attn.o_proj.bias"] = (hidden,)
    found["post_attention_layernorm.weight"] = (hidden,)
    found |= {f"mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")}
    found["mlp.down_proj.weight"] = (hidden, inner)
    return found


def check_tensors(shape: ModelShape, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raise one UserError that lists missing, unexpected and mis-shaped tensors of the checkpoint `where`."""
    expected = expected_tensors(shape)
    extra = [name for name in found if name not in expected and not _may_be_there(name, shape)]
    missing = [name for name in expected if name not in found]
    wrong = [
        f"{name} {list(found[name])} instead of {list(size)}"
        for name, size in expected.items()
        if name in found and tuple(found[name]) != size
    ]
    parts = [("missing", missing), ("not of this architecture", extra), ("of the wrong shape", wrong)]
    problems = [f"{_listed(names)} {what}" for what, names in parts if names]
    if problems:
        raise UserError(f"{where} does not hold the tensors of {shape.architecture}: {'; '.join(problems)}")


def _may_be_there(name: str, shape: ModelShape) -> bool:
    return IGNORED.search(name) is not None or (shape.tied and name == HEAD)


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    verb = "is" if len(listed) == 1 else "are"
    rest = len(listed) - _LISTED
    more = f" and {rest} more" if rest > 0 else ""
    return f"{', '.join(listed[:_LISTED])}{more} {verb}"
