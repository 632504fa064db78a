"""Every variant of a draft's checkpoint, and a draft beside its plain reference over three requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from eagle3_cases import (
    CONFIG,
    HIDDEN,
    VOCAB,
    Paged,
    matrix,
    target_embedding,
    tensors_of,
    toy_target,
    write,
)
from support.eagle3_reference import ReferenceHead
from torch import Tensor

from backends.base import AttentionBackend
from backends.torch_sdpa import TorchSDPA
from backends.triton import TritonAttention
from speculative.eagle3.checkpoint import load_draft

LENGTHS = (37, 21, 5)
BACKENDS = pytest.mark.parametrize(
    "backend",
    [
        TorchSDPA,
        pytest.param(TritonAttention, marks=pytest.mark.skipif(torch.cuda.is_available(), reason="compiled")),
    ],
)


def variant(**changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = {**CONFIG, **changes}
    return config, tensors_of(config)


def norm_each() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = variant(fc_norm=True)
    return config, tensors | {f"fc_norm.{i}.weight": matrix(f"n{i}", HIDDEN) for i in range(3)}


def norm_all() -> tuple[dict[str, Any], dict[str, Tensor]]:
    eagle = {**CONFIG["eagle_config"], "norm_before_fc": True}
    config, tensors = variant(eagle_config=eagle)
    return config, tensors | {"input_norm.weight": matrix("all", 3 * HIDDEN)}


def biased() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = variant(attention_bias=True, bias=True)
    for name, size in (("q", 64), ("k", 32), ("v", 32), ("o", HIDDEN)):
        tensors[f"midlayer.self_attn.{name}_proj.bias"] = matrix(name, 1, size)[0]
    return config, tensors | {"fc.bias": matrix("fc", 1, HIDDEN)[0]}


def without_aux() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = variant(eagle_config={"use_aux_hidden_state": False})
    del tensors["fc.weight"]
    return config, tensors


def one_state_through_fc() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = without_aux()
    return config, tensors | {"fc.weight": matrix("fc", HIDDEN, HIDDEN)}


def own_embedding() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = variant()
    return config, tensors | {"embed_tokens.weight": matrix("own", VOCAB, HIDDEN)}


def tied() -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = variant(tie_word_embeddings=True, draft_vocab_size=VOCAB)
    del tensors["lm_head.weight"]
    return config, tensors


VARIANTS = {
    "plain": variant,
    "other-heads": lambda: variant(num_attention_heads=8, num_key_value_heads=4, head_dim=32),
    "kv-heads-absent": lambda: variant(num_key_value_heads=None),
    "full-vocabulary": lambda: variant(draft_vocab_size=VOCAB),
    "norm-output": lambda: variant(norm_output=True),
    "norm-before-residual": lambda: variant(norm_before_residual=True),
    "fc-norm": norm_each,
    "norm-before-fc": norm_all,
    "biases": biased,
    "no-aux": without_aux,
    "no-aux-fc": one_state_through_fc,
    "own-embedding": own_embedding,
    "tied": tied,
}


class Run:
    """A draft and its reference over the same three requests."""

    def __init__(self, folder: Path, made: tuple[dict[str, Any], dict[str, Tensor]]) -> None:
        config, tensors = made
        target = toy_target()
        self.draft = load_draft(write(folder, config, tensors), target)
        self.reference = ReferenceHead(config, tensors, target_embedding(target.shape))
        width = HIDDEN * max(1, len(self.draft.aux_layers))
        generator = torch.Generator().manual_seed(3)
        self.ids = [torch.randint(0, VOCAB, (n,), generator=generator) for n in LENGTHS]
        self.states = [torch.randn((n, width), generator=generator) for n in LENGTHS]

    def paged(self, backend: type[AttentionBackend], page_size: int) -> Paged:
        return Paged(self.draft, backend, page_size, len(LENGTHS))

    def feed(self, paged: Paged, start: int, stop: int, *, verify: bool = False) -> list[Tensor]:
        ids = [x[start:stop] for x in self.ids]
        hidden = [self.draft.fuse(x[start:stop]) for x in self.states]
        return paged.step(ids, hidden, verify=verify)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
