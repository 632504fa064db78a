"""One draft written in every layout that is published, and its logits over fixed tokens and states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from eagle3_cases import HIDDEN, VOCAB, Paged, matrix, target_embedding, toy_target, write
from safetensors.torch import save_file
from support.eagle3_reference import ReferenceHead
from torch import Tensor

from backends.torch_sdpa import TorchSDPA
from speculative.eagle3.draft import Eagle3Draft

Tensors = dict[str, Tensor]
IDS = torch.arange(20) * 3 % VOCAB
STATES = matrix("states of the target", 20, 3 * HIDDEN)


def logits_of(draft: Eagle3Draft) -> Tensor:
    hidden = draft.fuse(STATES.to(draft.dtype))
    return draft.logits(Paged(draft, TorchSDPA, 16, 1).step([IDS], [hidden])[0])


def expected(config: dict[str, Any], tensors: Tensors) -> Tensor:
    reference = ReferenceHead(config, tensors, target_embedding(toy_target().shape))
    return reference.logits(reference.run(IDS, reference.fuse(STATES)))


def renamed(tensors: Tensors, prefix: str = "", layer: str = "midlayer.") -> Tensors:
    plain = ("d2t", "t2d", "lm_head.weight")
    found = {}
    for name, value in tensors.items():
        found[name if name in plain else prefix + name.replace("midlayer.", layer)] = value
    return found


def sharded(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(tensors)
    homes = {name: f"model-{i % 2 + 1:05}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(homes.values()):
        save_file({name: tensors[name] for name in names if homes[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return folder


def pickled(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


# Each writes the same draft another way; all must give the same logits to the bit.
LAYOUTS: dict[str, Callable[[Path, dict[str, Any], Tensors], Path]] = {
    "midlayer": write,
    "layers.0": lambda f, c, t: write(f, c, renamed(t, layer="layers.0.")),
    "model-prefix": lambda f, c, t: write(f, c, renamed(t, prefix="model.", layer="layers.0.")),
    "bin": pickled,
    "sharded": sharded,
    "theta-in-rope-parameters": lambda f, c, t: write(
        f, {**without(c, "rope_theta"), "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}, t
    ),
    "ids-absent": lambda f, c, t: write(f, without(c, "eagle_config"), t),
    "ids-null": lambda f, c, t: write(
        f, {**c, "eagle_config": {"eagle_aux_hidden_state_layer_ids": None}}, t
    ),
    "draft-vocabulary-absent": lambda f, c, t: write(f, without(c, "draft_vocab_size"), t),
    "no-t2d": lambda f, c, t: write(f, c, without(t, "t2d")),
    "int32-d2t": lambda f, c, t: write(f, c, {**t, "d2t": t["d2t"].int()}),
    "embedding-of-the-target": lambda f, c, t: write(
        f, c, {**t, "embed_tokens.weight": target_embedding(toy_target().shape)}
    ),
    "buffers": lambda f, c, t: write(f, c, {**t, "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8)}),
    "speculators": lambda f, c, t: write(
        f,
        {
            "architectures": ["Eagle3Speculator"],
            "draft_vocab_size": 48,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
            "transformer_layer_config": without(c, "eagle_config", "draft_vocab_size", "architectures"),
        },
        renamed(t, layer="layers.0."),
    ),
}
