"""The planned workspace holds what passes really keep alive, counted tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.engines import make
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from backends.base import AttentionSizes
from engine.llm import LLM
from engine.params import SamplingParams

SHAPE = (
    "model=tiny",
    "model.dtype=float32",
    "model.layers=3",
    "model.hidden=256",
    "model.heads=8",
    "model.kv_heads=2",
    "model.head_dim=32",
    "model.intermediate=704",
    "threads=1",
    "sampling.max_tokens=6",
    "cache.max_context=256",
    "cache.tokens=4096",
    "scheduler.max_running=8",
    "scheduler.chunk_tokens=512",
)
EVERYTHING = SamplingParams(
    max_tokens=20, ignore_eos=True, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.1,
    frequency_penalty=0.1, presence_penalty=0.1, logprobs=5, seed=1,
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)


class Living(TorchDispatchMode):
    """Bytes of storages made inside and still alive, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.untyped_storage()._cdata not in known:
                storage = value.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._made.values()))
        return result


@contextmanager
def living() -> Iterator[Living]:
    with Living() as mode:
        yield mode


def planned(llm: LLM) -> int:
    """The workspace, and what the torch backend gathers on a device that it is planned for."""
    sizes = llm._container.wanted().sizes
    shape = llm.shape
    asked = AttentionSizes(
        shape.num_heads, shape.num_kv_heads, shape.head_dim, 16, sizes.rows, sizes.passes.width,
        sizes.row_context, 4, sizes.passes.chunk,
    )  # fmt: skip
    attention = llm._container.attention().workspace_bytes(None, asked, ())
    return {item.name: item.bytes for item in llm.memory_plan.items}["workspace"] + int(attention)


@pytest.mark.parametrize("params", [GREEDY, EVERYTHING], ids=["greedy", "everything"])
@pytest.mark.parametrize(
    ("vocab", "chunk", "length"), [(512, 512, 200), (16_384, 64, 8)], ids=["activations", "logits"]
)
def test_the_workspace_holds_full_passes(params: SamplingParams, vocab: int, chunk: int, length: int) -> None:
    """Prompts fill the chunk, every row decodes."""
    options = (f"model.vocab={vocab}", f"scheduler.chunk_tokens={chunk}")
    with make(*SHAPE, *options) as llm:
        prompts = [[3 + i] * length for i in range(8)]
        llm.generate(prompts[:1], params)  # what lives as long as the engine is made
        with living() as count:
            llm.generate(prompts, params)
        assert llm.metrics.peak_running == 8
        bound = planned(llm)
    assert count.peak <= bound
    assert bound < 12 * count.peak  # and is no fantasy
