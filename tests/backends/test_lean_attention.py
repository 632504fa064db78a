"""Attention between products that live off the cache: which passes it is asked of, and what the driver is."""

from __future__ import annotations

import ctypes
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from attention_cases import build, extend, run, verify
from support.engines import make

from backends import triton
from backends.triton import TritonAttention
from engine.kernel_choices.plans import LINEAR, NORM_GATED, NORM_LINEAR, Place, Plan
from engine.kernel_choices.table import INTERPRETER, ChoiceTable, Circumstances, Entry, as_document
from kernels import attention_decode, attention_tile, launch
from kernels.attention_tiles import HOPPER, Tiles, tiles_for

SMALL = {"max_context": 128, "heads": 4, "kv_heads": 2}


@pytest.mark.parametrize("dependent", [True, False])
@pytest.mark.parametrize("lens", [(5,), (5, 9), (5, 9, 40)])
def test_passes_of_so_many_tokens_take_lean_tiles(
    lens: tuple[int, ...], dependent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tiles] = []

    def noted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(q: Any, kv: Any, batch: Any, scale: float, page: int, tiles: Tiles, *rest: Any) -> Any:
            seen.append(tiles)
            return real(q, kv, batch, scale, page, tiles, *rest)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(triton, "_capability", lambda device: HOPPER if dependent else HOPPER - 1)
    # Modules as the backend has them, which are imported when first used.
    noted(triton.attention_decode, "attention_decode")
    noted(triton.attention_extend, "attention_extend")
    for case in (
        replace(verify(4, **SMALL), lens=lens, queries=(4,) * len(lens)),
        extend((3, 5), (4, 9), **SMALL),
    ):
        world = build(case)
        context = replace(world.context, lean=frozenset({4, 8}))
        run(TritonAttention(TritonAttention.Config(), context), world)
    assert [tiles.decode.lean for tiles in seen] == [dependent and 4 * len(lens) <= 8, False]


def test_lean_tiles_differ_in_nothing_else() -> None:
    tiles = tiles_for(HOPPER, 2, 128).dependent()
    passes = ((4, 66, False), (20, 66, False), (4, 1, True), (20, 1, False), (64, 1, False))
    for rows, room, crowded in passes:
        one, lean = (each.decoding(rows, room=room, crowded=crowded) for each in (tiles, tiles.lean()))
        assert lean == replace(one, lean=True)
        assert one.dependent


@dataclass(frozen=True)
class Compiled:
    function: int
    name: str = "_attention_tile"


@pytest.mark.parametrize("code", [0, 1])
def test_the_driver_is_asked_once_a_kernel(
    code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[int | None, int, int]] = []

    class Driver:
        def __init__(self, name: str) -> None:
            assert name == "libcuda.so.1"

        def cuFuncSetAttribute(self, function: Any, attribute: int, value: Any) -> int:  # noqa: N802
            asked.append((function.value, attribute, value.value))
            return code

    monkeypatch.setattr(ctypes, "CDLL", Driver)
    monkeypatch.setattr(launch, "_LEAN", set())
    with caplog.at_level(logging.WARNING, logger="syncless"):
        for compiled in (Compiled(7), Compiled(7), Compiled(9), None):
            launch.leave_cache(compiled)
    assert asked == [(7, 9, 25), (9, 9, 25)]
    assert [("refused" in message) for message in caplog.messages] == [True] * (2 * code)


def test_only_lean_tiles_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(attention_tile, "leave_cache", asked.append)
    world, tiles = build(verify(2, **SMALL)), tiles_for(0, 4, 64)
    for lean in (frozenset[int](), frozenset({world.q.shape[0]})):
        context = replace(world.context, lean=lean)
        tile = (tiles.lean() if lean else tiles).decode
        monkeypatch.setattr(attention_decode, "_tile", lambda *_, tile=tile: tile)
        run(TritonAttention(TritonAttention.Config(), context), world)
    assert len(asked) == 1


TINY = ("model=tiny", "model.dtype=float32", "model.layers=1", "threads=1", "device=cpu", "attention=triton")


def products(llm: Any) -> list[tuple[str, tuple[int, int]]]:
    """(stage, (N, K)) of a layer."""
    stages = (NORM_LINEAR, LINEAR, NORM_GATED, LINEAR)
    return list(zip(stages, llm.shape.layer_products, strict=True))


def test_an_engine_knows_its_own_products(tmp_path: Path) -> None:
    """Of a table with other models' products, and one that goes through shared memory."""
    with make(*TINY) as llm:
        sites = products(llm)
        weights = llm._container.model().layers[0]._weights
        maps = (weights.qkv, weights.output, weights.gate_up, weights.down)
        assert [tuple(each.plain.weight.shape) for each in maps] == [size for _, size in sites]
    rows, tile = Plan("rows", 8, 32), Plan("tile", 16, 16)
    entries = {Place(stage, "float32", tokens, *size): rows for stage, size in sites for tokens in (1, 5)}
    entries |= {
        Place(LINEAR, "float32", 5, 16, 16): tile,
        Place(NORM_GATED, "float32", 8, *sites[2][1]): tile,
    }
    table = ChoiceTable(
        Circumstances.here(INTERPRETER), {place: Entry(plan, 1e-6, 2e-6) for place, plan in entries.items()}
    )
    path = tmp_path / "choices.json"
    path.write_text(json.dumps(as_document(table)))
    with make(*TINY, f"kernels={path}") as llm:
        backend = llm._container.attention()
        assert backend._context.lean == {1, 2, 3, 4, 5}
