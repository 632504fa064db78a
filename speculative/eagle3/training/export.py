"""A trained draft as files of the public EAGLE3 layout, and back: config.json and model.safetensors.

Knows names, shapes and dtypes; nothing of training.
Source of the layout: Li et al. 2025 (EAGLE-3) as SGLang, vLLM and SpecForge read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.models.shape import ModelShape
from speculative.eagle3.training.net import DraftNet, DraftShape
from speculative.eagle3.training.vocabulary import Vocabulary

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def public_tensors(net: DraftNet, keep: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The checkpoint's tensors by public name. keep: bool [Vd], the draft tokens that stay.

    The channel scales of the auxiliary states become part of fc.weight.
    """
    state = {name: tensor.detach().float() for name, tensor in net.named_parameters()}
    state["fc.weight"] = state["fc.weight"] / net.aux_scale
    state["lm_head.weight"] = state["lm_head.weight"][keep]
    found = {name: tensor.to(dtype).cpu().contiguous() for name, tensor in state.items()}
    ids = net.target_ids()[keep]
    found["d2t"] = (ids - torch.arange(len(ids), device=ids.device)).cpu()
    found["t2d"] = torch.zeros_like(net.t2d).index_fill_(0, ids, True).cpu()
    return found


def public_config(
    shape: DraftShape, draft_vocab: int, aux_layers: Sequence[int], dtype: str
) -> dict[str, Any]:
    """config.json. aux_layers: layers whose inputs are read; the file counts outputs, one less."""
    layer = shape.model
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_heads,
        "num_key_value_heads": layer.num_kv_heads,
        "head_dim": layer.head_dim,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": layer.max_positions,
        "rms_norm_eps": layer.rms_eps,
        "rope_theta": layer.rope_theta,
        "rope_scaling": dict(layer.rope_scaling) or None,
        "tie_word_embeddings": False,
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": draft_vocab,
        "target_hidden_size": shape.aux // len(aux_layers),
        "num_aux_hidden_states": len(aux_layers),
        "eagle_config": {
            "use_aux_hidden_state": True,
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in aux_layers],
        },
        "torch_dtype": dtype,
    }


def write_draft(folder: Path, net: DraftNet, keep: Tensor, aux_layers: Sequence[int], dtype: str) -> None:
    """config.json and model.safetensors of the draft with the tokens `keep`, bool [Vd]."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = public_tensors(net, keep, getattr(torch, dtype))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)  # safetensors leaves it to its owner alone
    config = public_config(net.shape, len(tensors["d2t"]), aux_layers, dtype)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_draft(folder: Path, device: torch.device) -> DraftNet:
    """A draft that `write_draft` wrote, in fp32, so that what is measured is what was written."""
    config: Mapping[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    tensors = load_file(folder / WEIGHTS)
    layer = ModelShape(
        architecture="EAGLE3",
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=1,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate_size=config["intermediate_size"],
        max_positions=config["max_position_embeddings"],
        rms_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        rope_scaling=config["rope_scaling"] or {},
    )
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
    aux = config["target_hidden_size"] * config["num_aux_hidden_states"]
    shape = DraftShape(layer, aux, config["draft_vocab_size"])
    net = DraftNet(shape, Vocabulary(ids.numpy(), config["vocab_size"]))
    net.load_state_dict({**tensors, "aux_scale": torch.ones(aux)})
    return net.to(device).eval()
