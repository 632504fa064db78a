"""Rows that get no drafts: past the draft's positions, or without entries; Triton as the torch reference."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported

from engine.batch import ABSENT, SeqLens
from speculative.eagle3.options import REMEMBERED
from speculative.eagle3.silence import COLD, TOO_LONG, silenced
from speculative.eagle3.triton_silence import TritonSilenced
from speculative.tree import chain
from speculative.views import DraftView

LONGEST = 20


def a_view(lens: list[int], width: int) -> DraftView:
    none, rows = torch.zeros(1, dtype=torch.int32), torch.arange(len(lens))
    device = torch.tensor(lens, dtype=torch.int32)
    return DraftView(none, rows, SeqLens(device, tuple(lens)), {}, none, 1, none, width)


@pytest.mark.parametrize("silence", [silenced, TritonSilenced()])
@pytest.mark.parametrize(("long", "cold"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("width", [2, 5])
def test_who_is_silent(silence, long: bool, cold: bool, width: int) -> None:
    """The limits themselves still draft; both reasons may hold."""
    lens, behind = [0, LONGEST, LONGEST + 1, 3, LONGEST + 9], [0, 5, REMEMBERED, REMEMBERED + 1, 99]
    tree = chain(torch.arange(5 * width, dtype=torch.int32).view(5, width))
    found = silence(
        tree, a_view(lens, width), LONGEST if long else None,
        torch.tensor(behind, dtype=torch.int32) if cold else None,
    )  # fmt: skip
    wanted = [
        TOO_LONG * (long and n > LONGEST) + COLD * (cold and b > REMEMBERED)
        for n, b in zip(lens, behind, strict=True)
    ]
    if not (long or cold):
        assert found is tree
        return
    assert found.signal is not None
    assert found.signal.dtype == found.parent.dtype == torch.int32
    assert found.signal.tolist() == wanted
    drafts = list(range(width - 1))
    assert found.parent.tolist() == [[-1, *([ABSENT] * (width - 1) if s else drafts)] for s in wanted]
    assert torch.equal(found.tokens, tree.tokens)


@pytest.mark.parametrize("silence", [silenced, TritonSilenced()])
def test_an_idle_batch(silence) -> None:
    found = silence(chain(torch.zeros(0, 3, dtype=torch.int32)), a_view([], 3), LONGEST, None)
    assert (tuple(found.parent.shape), tuple(found.signal.shape)) == ((0, 3), (0,))
