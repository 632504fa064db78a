"""A small decoder over a paged pool, and prefill passes of it, for tests below the engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from backends.base import AttentionBackend, AttentionContext
from backends.torch_sdpa import TorchSDPA
from engine.batch import ForwardBatch, Mode, SeqLens
from engine.kv_pool import KVPool
from engine.models.base import drive
from engine.models.llama import LlamaModel
from engine.models.tiny import TinyModel
from engine.passes import PlainPasses

PAGE, PAGES = 4, 16
CPU = torch.device("cpu")


@dataclass
class Bench:
    """A model with states to collect, a pool that was used before, its attention."""

    model: LlamaModel
    pool: KVPool
    attention: AttentionBackend

    @classmethod
    def make(cls, backend: type = TorchSDPA, aux: tuple[int, ...] = (0, 2), rows: int = 5) -> Bench:
        loaded = TinyModel(TinyModel.Config(dtype="float32", vocab=300)).load("cpu", "float32")
        model = loaded.model
        assert isinstance(model, LlamaModel)
        model.collect(aux)
        pool = KVPool(model.kv_layout, rows * PAGES, PAGE, CPU)
        generator = torch.Generator().manual_seed(1)
        for side in (side for layer in pool.layers for side in (layer.k, layer.v)):
            side[PAGE:].normal_(generator=generator)  # what earlier requests left, or this one's prefix
        return cls(model, pool, cls.attention_of(backend, model, rows))

    @staticmethod
    def attention_of(backend: type, model: LlamaModel, rows: int = 5) -> AttentionBackend:
        shape = model.shape
        context = AttentionContext(
            "target", shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.head_dim**-0.5,
            PAGE, rows + 1, 1, PAGE * PAGES, CPU, torch.float32,
        )  # fmt: skip
        made: AttentionBackend = backend(backend.Config(), context)
        return made

    @property
    def passes(self) -> PlainPasses:
        return PlainPasses(self.model, self.pool.layers)

    def eager(self, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        self.attention.init_forward_metadata(batch)
        return drive(self.passes.begin(batch, self.attention.ops), self.attention, batch)

    def padding_is_finite(self) -> bool:
        sides = [side for layer in self.pool.layers for side in (layer.k, layer.v)]
        return all(bool(torch.isfinite(side[:PAGE]).all()) for side in sides)


@contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """Memory that torch.empty returns holds NaN, not what happens to lie there."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def prompts(*lens: int, before: tuple[int, ...] = (), seed: int = 0, first_row: int = 1) -> ForwardBatch:
    """Chunks of `lens` tokens behind `before` known ones; row r owns pages (r - 1) * PAGES + 1 and on."""
    known = before or (0,) * len(lens)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(first_row, first_row + len(lens))
    table = torch.zeros(first_row + len(lens), PAGES, dtype=torch.int32)
    for row in rows.tolist():
        table[row] = torch.arange(PAGES) + (row - 1) * PAGES + 1
    positions = torch.cat([torch.arange(n) + k for n, k in zip(lens, known, strict=True)])
    token_rows = torch.repeat_interleave(rows, torch.tensor(lens))
    pages = table[token_rows, positions // PAGE].long()
    return ForwardBatch(
        mode=Mode.EXTEND,
        rows=rows,
        input_ids=torch.randint(0, 300, (sum(lens),), generator=generator),
        positions=positions,
        slots=pages * PAGE + positions % PAGE,
        seq_lens=SeqLens(torch.tensor(known, dtype=torch.int32), known),
        query_start=torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32),
        query_lens=lens,
        page_table=table,
        page_size=PAGE,
    )
