"""The tensors of an EAGLE3 checkpoint by name and shape, and the strict check of what a file holds.

Names are the published ones (`midlayer.*`); other spellings are translated into them. Free of torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from engine.errors import UserError
from engine.models.names import IGNORED
from speculative.eagle3.shape import Eagle3Shape

EMBED = "embed_tokens.weight"
HEAD = "lm_head.weight"
FC = "fc.weight"
FC_BIAS = "fc.bias"
FINAL_NORM = "norm.weight"
STATE_NORM = "input_norm.weight"
D2T, T2D = "d2t", "t2d"
LAYER = "midlayer."
ATTENTION = LAYER + "self_attn."
MLP = LAYER + "mlp."
_SPELLINGS = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^layers\.0\."), LAYER),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)

Shapes = Mapping[str, tuple[int, ...]]


def canonical(names: Iterable[str], where: str) -> dict[str, str]:
    """published name -> stored name, without buffers that follow from the config.

    Raises UserError when two stored names mean the same tensor.
    """
    found: dict[str, str] = {}
    for stored in names:
        name = stored
        for pattern, ours in _SPELLINGS:
            name = pattern.sub(ours, name)
        if name in found:
            raise UserError(f"{where} holds the same tensor twice: {found[name]} and {stored}")
        if IGNORED.search(name) is None:
            found[name] = stored
    return found


def state_norm(index: int) -> str:
    return f"fc_norm.{index}.weight"


def required_tensors(shape: Eagle3Shape) -> dict[str, tuple[int, ...]]:
    """name -> shape of every tensor that a checkpoint of `shape` must hold whatever else it holds."""
    layer = shape.layer
    hidden, inner = layer.hidden_size, layer.intermediate_size
    outputs = {"q_proj": layer.q_size, "k_proj": layer.kv_size, "v_proj": layer.kv_size}
    found: dict[str, tuple[int, ...]] = _fusion(shape)
    found |= {LAYER + n: (hidden,) for n in ("hidden_norm.weight", "input_layernorm.weight")}
    found |= {f"{ATTENTION}{name}.weight": (size, 2 * hidden) for name, size in outputs.items()}
    found[ATTENTION + "o_proj.weight"] = (hidden, layer.q_size)
    if layer.qkv_bias:
        found |= {f"{ATTENTION}{name}.bias": (size,) for name, size in outputs.items()}
        found[ATTENTION + "o_proj.bias"] = (hidden,)
    found[LAYER + "post_attention_layernorm.weight"] = (hidden,)
    found |= {f"{MLP}{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")}
    found |= {MLP + "down_proj.weight": (hidden, inner), FINAL_NORM: (hidden,)}
    if shape.draft_vocab is not None and not layer.tied:
        found[HEAD] = (shape.draft_vocab, hidden)
    return found


def _fusion(shape: Eagle3Shape) -> dict[str, tuple[int, ...]]:
    width, count = shape.states_width, max(shape.aux.count, 1)
    found: dict[str, tuple[int, ...]] = {}
    if shape.aux.count or width != shape.layer.hidden_size:
        found[FC] = (shape.layer.hidden_size, width)
    if shape.fc_bias:
        found[FC_BIAS] = (shape.layer.hidden_size,)
    if shape.norm_before_fc:
        found[STATE_NORM] = (width,)
    if shape.fc_norm:
        found |= {state_norm(i): (width // count,) for i in range(count)}
    return found


def optional_tensors(shape: Eagle3Shape, held: Shapes) -> dict[str, tuple[int, ...]]:
    """name -> shape of what a checkpoint may hold besides. The head's own rows count: they are the draft's
    vocabulary."""
    layer = shape.layer
    rows = shape.draft_vocab or held.get(HEAD, (layer.vocab_size,))[0]
    found = {EMBED: (layer.vocab_size, layer.hidden_size), T2D: (layer.vocab_size,)}
    found |= {HEAD: (rows, layer.hidden_size), D2T: (rows,)}
    if not shape.aux.count:
        found[FC] = (layer.hidden_size, shape.states_width)
    return found


def check_tensors(shape: Eagle3Shape, held: Shapes, where: str) -> None:
    """Raise one UserError that lists missing, unexpected and mis-shaped tensors of the checkpoint `where`."""
    required = required_tensors(shape)
    known = {**optional_tensors(shape, held), **required}
    wrong = [
        f"{name} {list(held[name])} instead of {list(size)}"
        for name, size in known.items()
        if name in held and tuple(held[name]) != size
    ]
    parts = {
        "missing": [name for name in required if name not in held],
        "not of an EAGLE3 draft": [name for name in held if name not in known],
        "of the wrong shape": wrong,
    }
    problems = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
    if problems:
        raise UserError(
            f"{where} does not hold the tensors that its config.json describes; {'; '.join(problems)}"
        )


def refuse_plain_eagle(held: Shapes, where: str) -> None:
    """Raise UserError for a head of EAGLE 1 or 2, whose fc takes what an EAGLE3 layer takes."""
    fc, query = held.get(FC, ()), held.get(ATTENTION + "q_proj.weight", ())
    if len(fc) == 2 and len(query) == 2 and fc[1] == 2 * fc[0] and query[1] == fc[0]:
        raise UserError(
            f"{where} is an EAGLE (1 or 2) head, not an EAGLE3 one: its fc [{fc[0]}, {fc[1]}] joins the "
            "embedding with one hidden state and its layer takes the result; spec=eagle3 needs a head "
            "that was trained as EAGLE3"
        )
