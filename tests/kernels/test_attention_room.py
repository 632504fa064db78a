"""No decode pass within the limits of an engine needs more room than its workspace has: as attention_decode
decides, for GPUs, models and limits drawn at random, of either kernel."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from backends.base import AttentionSizes
from backends.triton import TritonAttention, _space, _split_plan
from engine.batch import ForwardBatch, LayerKV, Mode, SeqLens
from kernels import attention_decode as module
from kernels.attention_decode import attention_decode
from kernels.attention_merge import Partial, Workspace
from kernels.attention_splits import SplitPlan
from kernels.attention_tiles import HOPPER, Tiles, tiles_for

META = torch.device("meta")


@dataclass(frozen=True)
class Engine:
    """Limits of an engine on a GPU, and the workspace that it plans for."""

    sizes: AttentionSizes
    plan: SplitPlan
    tiles: Tiles
    room: Workspace

    @classmethod
    def drawn(cls, chance: random.Random) -> Engine:
        kv_heads, group = chance.choice((1, 2, 3, 4, 8, 16, 32)), chance.choice((1, 2, 3, 4, 7, 8, 16))
        page, dim, size = chance.choice((8, 16, 64, 256)), chance.choice((64, 128)), chance.choice((2, 2, 4))
        rows, width = chance.choice((2, 9, 33, 65, 257, 513)), chance.choice((1, 2, 4, 5, 16))
        context = chance.choice((64, 95, 96, 100, 255, 600, 2047, 4100, 9000, 131_072))
        processors = chance.choice((16, 58, 78, 114, 132, 160))
        sizes = AttentionSizes(
            group * kv_heads, kv_heads, dim, page, rows, width, context, size, 512, processors
        )
        config = TritonAttention.Config(chance.choice((0, 0, 0, 1, 2, 3, 32)))
        plan = _split_plan(4 * processors, config, size)
        tiles, space = tiles_for(HOPPER, size, dim), _space(plan, sizes)
        room = [torch.empty(length, device=META) for length in (space.sums, space.stats, space.arrivals)]
        return cls(sizes, plan, tiles.lean() if chance.random() < 0.2 else tiles, Workspace(*room))

    def decode(self, requests: int, width: int, tree: bool) -> None:
        """A pass as launched, but for the kernel."""
        sizes, dtype = self.sizes, torch.bfloat16 if self.sizes.element_size == 2 else torch.float32
        columns = -(-sizes.max_context // sizes.page_size)
        empty = torch.empty(0, device=META)
        q = torch.empty(requests * width, sizes.num_heads, sizes.head_dim, device=META, dtype=dtype)
        side = torch.empty(sizes.page_size, sizes.num_kv_heads, sizes.head_dim, device=META, dtype=dtype)
        batch = ForwardBatch(
            mode=Mode.VERIFY, rows=empty, input_ids=empty, positions=empty, slots=empty,
            seq_lens=SeqLens(empty, (0,) * requests), query_start=empty, query_lens=(width,) * requests,
            page_table=torch.empty(sizes.max_rows, columns, device=META), width=width,
            page_size=sizes.page_size, tree_mask=empty if tree else None,
        )  # fmt: skip
        kv, page = LayerKV(0, side, side), sizes.page_size
        attention_decode(q, kv, batch, 1.0, page, self.tiles, self.plan, self.room)


@pytest.mark.parametrize("seed", range(60))
def test_every_pass_fits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    engine = Engine.drawn(chance)
    kinds = {name: _checked(name, engine, monkeypatch) for name in ("launch", "attention_stream")}
    monkeypatch.setattr(module, "INTERPRETED", False)
    most = engine.sizes.max_rows
    batches = {1, 2, most, *(chance.randint(1, most) for _ in range(10)), 6, 16, 17, 24, 25}
    for requests in sorted(size for size in batches if size <= most):
        for width in range(1, engine.sizes.max_width + 1):
            engine.decode(requests, width, tree=False)
            engine.decode(requests, width, tree=True)
    assert sum(map(len, kinds.values())) > 0


def _checked(name: str, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """In a kernel's place: what its splits store and count lies inside of the workspace."""
    taken: list[int] = []

    def noted(
        q: Any, kv: LayerKV, batch: ForwardBatch, scale: float, page: int, tile: Any, *rest: Any
    ) -> Any:
        partial: Partial | None = rest[0] if rest else None
        splits = 1 if partial is None else partial.splits
        taken.append(splits)
        assert splits >= 1
        if partial is not None:
            rows = batch.width * q.shape[1] // kv.k.shape[1]
            tiles = -(-rows // tile.rows) * kv.k.shape[1] * batch.size
            assert q.shape[0] * q.shape[1] * splits * q.shape[2] <= partial.room.sums.numel()
            assert q.shape[0] * q.shape[1] * splits * 2 <= partial.room.stats.numel()
            assert tiles <= partial.room.arrivals.numel()
        return q

    monkeypatch.setattr(module, name, noted)
    return taken


def test_drawn_engines_use_either_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """With splits and without: what the test above looks at is there."""
    monkeypatch.setattr(module, "INTERPRETED", False)
    found = set()
    for seed in range(60):
        engine = Engine.drawn(random.Random(seed))
        kinds = {name: _checked(name, engine, monkeypatch) for name in ("launch", "attention_stream")}
        engine.decode(engine.sizes.max_rows, 1, tree=False)
        found |= {(name, splits > 1) for name, taken in kinds.items() for splits in taken}
    assert len(found) == 4
