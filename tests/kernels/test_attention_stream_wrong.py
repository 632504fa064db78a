"""Changes of streamed attention's text that make it wrong, slower or a race: the check on numpy sees each."""

from __future__ import annotations

import pytest
from test_attention_stream_text import some

KEYS_AND_PAGES = [
    ("position < reach, other=-1", "position <= reach, other=-1"),
    ("position < reach, other=-1", "position >= 0, other=-1"),
    ("slots, ids[part] * PAGE", "0, ids[part] * PAGE"),
    ("(block * BLOCK + part * PART) % PAGE", "(part * PART) % PAGE"),
    ("slice(part * PART, PART)", "slice(0, PART)"),
    ("column + strip * 64]", "column + 0 * strip]"),
    ("ring.index(stage * STRIPS + strip)", "ring.index(stage + strip)"),
    ("begin + STAGES, reach", "begin, reach"),
    ("block + STAGES + 1, reach", "block + STAGES, reach"),
    ("wanted = block + STAGES < blocks", "wanted = block + STAGES <= blocks"),
    ("[kv.k.stride(0), 1]", "[kv_heads * 64, 1]"),
]
EARLY = [
    ("length // BLOCK, blocks", "(length + BLOCK - 1) // BLOCK, blocks"),
    ("length // BLOCK, blocks", "reach // BLOCK, blocks"),
    ("gl.minimum(length // BLOCK, blocks)", "length // BLOCK"),
    ("length // BLOCK, blocks", "length // BLOCK, 0"),
    ("begin + stage < settled", "begin + stage < blocks"),
    ("range(gl.maximum(settled, begin), gl", "range(settled, gl"),
    ("PDL)\n\n    if SPLIT and begin >= blocks:\n        return", "PDL and begin < blocks)\n"),
]
COPIES_AND_BARRIERS = [
    ("barrier, 2 * BLOCK * D", "barrier, BLOCK * D"),
    ("// STAGES) & 1", "// STAGES + 1) & 1"),
    ("phase = ((block - begin) //", "phase = (block //"),
    ("at = (block - begin) % STAGES", "at = block % STAGES"),
    ("mbarrier.wait(value_full.index(at), phase)", "pass"),
    ("mbarrier.wait(value_full.index(at), phase)", "mbarrier.wait(key_full.index(at), phase)"),
    ("gluon_barrier()  # all have read", "pass  # all have read"),
    ("gluon_barrier()\n        _fetch(\n            v_pool", "_fetch(\n            v_pool"),
    ("fence_async_shared()\n        gluon_barrier()", "gluon_barrier()"),
    ("fence_async_shared()\n        gluon_barrier()", "fence_async_shared()"),
    ("fence_async_shared()\n    gluon_barrier()", "gluon_barrier()"),
    ("wait(0, deps=[scores])", "wait(1, deps=[scores])"),
    ("wait(0, deps=[later[strip]])", "wait(1, deps=[later[strip]])"),
]
MASKS_AND_SUMS = [
    ("key < live", "key <= live"),
    ("live < BLOCK", "live < BLOCK - 1"),
    ("reach = length + width", "reach = length + 1"),
    ("row < width * GROUP", "row <= width * GROUP"),
    ("last = length + line // GROUP", "last = length + width - 1"),
    ("total * shrink + weight", "total + weight"),
    ("acc[strip] * shrink", "acc[strip]"),
    ("top = gl.full([ROWS], -1e30", "top = gl.full([ROWS], 0.0"),
]
SPLITS = [
    ("gl.minimum(reach // least, splits)", "gl.minimum((reach + least - 1) // least, splits)"),
    ("(reach + parts - 1) // parts", "reach // parts"),
    ("used = (blocks + share - 1) // share", "used = parts"),
    ("begin + share)", "begin + share + 1)"),
    ("if SPLIT and used > 1:", "if SPLIT:"),
    ("cell * splits + gl.program_id(2)", "cell * used + gl.program_id(2)"),
    ("request * gl.num_programs(0) + group", "request + group"),
]
MERGE = [
    ("== used - 1", "== used"),
    ("gl.store(arrival, 0, mask=last)", "gl.store(arrival, 0)"),
    ("gl.store(arrival, 0, mask=last)", "pass"),
    ("gluon_barrier()  # one thread", "pass  # one thread"),
    ('sem="acq_rel"', 'sem="relaxed"'),
    ("at + i < used", "at + i <= used"),
    ("weight = weight * shrink\n", "weight = weight\n"),
    ("merged[strip] * shrink[None, :]", "merged[strip]"),
    ("gl.exp2(heights[i] - top) * weights[i]", "weights[i]"),
    ("parts[i * (D // 64) + strip]", "parts[strip]"),
    ("range(0, used, TAKEN)", "range(0, used - 1, TAKEN)"),
    ("top = gl.where(real, -1e30, -1e30)", "top = gl.where(real, 0.0, 0.0)"),
    ('other=0.0, cache_modifier=".cg"', "other=0.0"),
]
ALL = [*KEYS_AND_PAGES, *EARLY, *COPIES_AND_BARRIERS, *MASKS_AND_SUMS, *SPLITS, *MERGE]


@pytest.mark.parametrize(("here", "wrong"), ALL)
def test_a_wrong_text_is_seen(here: str, wrong: str) -> None:
    met = []

    def edited(text: str) -> str:
        met.append(here in text)
        return text.replace(here, wrong)

    def all_passes() -> None:
        for seed in range(25):
            some(seed).check(edited)

    with pytest.raises((AssertionError, IndexError)):
        all_passes()
    assert any(met), "the text does not say this any more"
