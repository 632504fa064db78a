"""Synthetic EAGLE3 checkpoints in the public layout, a target to go with them, and paged passes over them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backends.base import AttentionBackend, AttentionContext
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens
from engine.models.shape import ModelShape
from speculative.base import DraftTarget
from speculative.eagle3.draft import Eagle3Draft

VOCAB, HIDDEN, LAYERS = 96, 64, 12
USUAL = (2, 6, 9)  # inputs of layers
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "vocab_size": VOCAB,
    "draft_vocab_size": 48,
    "target_hidden_size": HIDDEN,
    "tie_word_embeddings": False,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
}


def target_shape(**changes: Any) -> ModelShape:
    sizes = {
        "architecture": "toy", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_layers": LAYERS,
        "num_heads": 8, "num_kv_heads": 8, "head_dim": 8, "intermediate_size": 128, "max_positions": 512,
    }  # fmt: skip
    return ModelShape(**{**sizes, **changes})


def matrix(name: str, *size: int) -> Tensor:
    seed = sum((i + 1) * ord(c) for i, c in enumerate(name))
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return 1 + 0.2 * values if len(size) == 1 else values / size[-1] ** 0.5


def toy_target(weights: str = "float32", device: str = "cpu", **changes: Any) -> DraftTarget:
    shape = target_shape(**changes)
    dtype = torch.bfloat16 if weights == "int4" else getattr(torch, weights)
    embed = target_embedding(shape).to(device, dtype)
    head = embed if shape.tied else matrix("head of the target", shape.vocab_size, shape.hidden_size)
    head = head.to(device, dtype)
    return DraftTarget("toy", shape, lambda: embed, lambda x: (x @ head.T).float(), weights, device)


def target_embedding(shape: ModelShape) -> Tensor:
    return matrix("embedding of the target", shape.vocab_size, shape.hidden_size)


def tensors_of(config: dict[str, Any]) -> dict[str, Tensor]:
    """Random weights under the published names, norms off 1 so that a forgotten one shows."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    kv = (config.get("num_key_value_heads") or heads) * dim
    rows = config.get("draft_vocab_size") or config["vocab_size"]
    sizes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, 3 * (config.get("target_hidden_size") or hidden)),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * dim),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (rows, hidden),
    }
    found = {name: matrix(name, *size) for name, size in sizes.items()}
    if rows < config["vocab_size"]:
        ids = torch.arange(rows) * config["vocab_size"] // rows + 1
        found["d2t"] = ids - torch.arange(rows)
        found["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill_(0, ids, True)
    return found


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors")
    return folder


class Paged:
    """KV of a draft in scattered pages, and the passes over it. counts: most positions of each request."""

    def __init__(
        self, draft: Eagle3Draft, backend: type[AttentionBackend], page_size: int, rows: int
    ) -> None:
        self.draft, self.page_size = draft, page_size
        columns = -(-128 // page_size)
        pages = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(1)) + 1
        self.table = torch.zeros((rows + 1, columns), dtype=torch.int32)
        self.table[1:] = pages.view(rows, columns).int()
        size = ((rows * columns + 1) * page_size, draft.num_kv_heads, draft.head_dim)
        self.kv = [LayerKV(0, *(torch.zeros(size, dtype=draft.dtype) for _ in "kv"))]
        context = AttentionContext(
            role="draft", num_heads=draft.num_heads, num_kv_heads=draft.num_kv_heads, head_dim=draft.head_dim,
            scale=draft.head_dim**-0.5, page_size=page_size, max_rows=rows + 1, max_width=8, max_context=128,
            device=torch.device("cpu"), dtype=draft.dtype,
        )  # fmt: skip
        self.attention = backend(backend.Config(), context)
        self.lens = [0] * rows

    def slots(self, request: int, start: int, stop: int) -> Tensor:
        at = torch.arange(start, stop)
        return self.table[request + 1, at // self.page_size].long() * self.page_size + at % self.page_size

    def step(self, ids: Sequence[Tensor], hidden: Sequence[Tensor], *, verify: bool = False) -> list[Tensor]:
        """One pass with these tokens of each request; what `forward` returned, by request."""
        batch = self.batch(ids, verify)
        self.attention.init_forward_metadata(batch)
        out = self.draft.forward(batch, torch.cat(list(hidden)), self.attention, self.kv)
        self.lens = [n + len(x) for n, x in zip(self.lens, ids, strict=True)]
        return list(out.split([len(x) for x in ids]))

    def batch(self, ids: Sequence[Tensor], verify: bool) -> ForwardBatch:
        counts = tuple(len(x) for x in ids)
        ends = [(n, n + c) for n, c in zip(self.lens, counts, strict=True)]
        start = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()
        slack = 5 if verify else 0
        return ForwardBatch(
            mode=Mode.VERIFY if verify else Mode.EXTEND, rows=torch.arange(1, len(ids) + 1),
            input_ids=torch.cat(list(ids)), positions=torch.cat([torch.arange(*end) for end in ends]),
            slots=torch.cat([self.slots(r, *end) for r, end in enumerate(ends)]),
            seq_lens=SeqLens(torch.tensor(self.lens, dtype=torch.int32), tuple(n + slack for n in self.lens)),
            query_start=start, query_lens=counts, page_table=self.table, width=counts[0] if verify else 0,
            page_size=self.page_size,
        )  # fmt: skip
