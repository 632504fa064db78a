"""Every kernel variant that serving launches was launched before, under the modes too: half batches, prefill
graphs, step graphs. How variants are recorded: test_launch_variants.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.engines import make
from test_launch_variants import BASE, LONG, serve

from engine.llm import LLM
from engine.params import SamplingParams
from engine.two_batches.split import middle
from engine.warm_up import Limits, prefill_passes, warm_up

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="recorded by Triton's interpreter")
RUNNING = 20
BATCHES = (1, 2, 8, 15, RUNNING)
HALVES = ("tbo=two_batch", "tbo.min_tokens=2")
STREAMED = ("model.head_dim=128", "model.heads=8", "model.kv_heads=8")
QUEUED = ("model.head_dim=128", "model.heads=80", "model.kv_heads=80", "cache.tokens=5000")
BUCKETS = "pcg.buckets=[64,256,1024]"


def start(llm: LLM, *, halved: bool) -> None:
    """What an engine runs on a GPU before its first request."""
    modes = llm._container.modes()
    whole = llm._container.tbo().whole
    limits = Limits(min(modes.chunk_tokens, modes.context - 1), modes.chunk_tokens, halved, whole)
    warm_up(llm._container.eager(), modes.widths, limits, llm.metrics, lambda *_: None)


@pytest.mark.parametrize(
    "mode",
    [
        HALVES,
        (*HALVES, "spec=ngram", "step_costs=measure"),
        (*HALVES, "pcg=piecewise", BUCKETS),
        ("pcg=full",),
        ("graph=step",),
        ("graph=step", *STREAMED),
        (*HALVES, *STREAMED),
        (*HALVES, *QUEUED),
        ("graph=step", *QUEUED),
    ],
    ids=str,
)
def test_serving_launches_nothing_new(
    mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Field report T7."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from support.launches import recorded

    options = (*BASE, *LONG, *mode, f"scheduler.max_running={RUNNING}")
    with recorded(monkeypatch) as found, make(*options) as llm:
        start(llm, halved="tbo=two_batch" in mode)
        before = set(found)
        serve(llm, BATCHES)
    names = {name for name, _ in before}
    assert "_attention_tile" in names
    assert ("_attention_stream" in names) is (STREAMED[0] in mode)
    assert ("attention_queue" in names) is (QUEUED[1] in mode)
    assert found - before == set()


@pytest.mark.parametrize("smallest", ["tbo.min_tokens=32", "tbo.min_requests=30"])
def test_so_are_those_of_passes_too_small_to_be_cut(
    smallest: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of 48 requests at most, 25 to 31 fill the queue where they are one batch; 24, half of 48, do not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from support.launches import recorded

    heads = ("model.head_dim=128", "model.heads=32", "model.kv_heads=32", "cache.tokens=12000")
    options = (*BASE, *LONG, *heads, "tbo=two_batch", "tbo.min_tokens=2", smallest)
    with recorded(monkeypatch) as found, make(*options, "scheduler.max_running=48") as llm:
        start(llm, halved=True)
        before = set(found)
        llm.generate([[3, 4]] * 27, SamplingParams(max_tokens=3, ignore_eos=True))
    assert "attention_queue" in {name for name, _ in found}
    assert found - before == set()


def test_halves_that_were_left_out_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proves that the test above can fail: whole passes alone do not show what their halves launch."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from support.launches import recorded

    with (
        recorded(monkeypatch) as found,
        make(*BASE, *LONG, *HALVES, f"scheduler.max_running={RUNNING}") as llm,
    ):
        start(llm, halved=False)
        before = set(found)
        serve(llm, BATCHES)
    assert {name for name, _ in found - before} == {"_attention_tile"}


def crowd(tokens: tuple[int, ...], size: int) -> int:
    """Requests of the larger half whose longest prompt has so many tokens; 0: there is none."""
    ids = torch.zeros(sum(tokens))
    whole = SimpleNamespace(mode=None, size=len(tokens), query_lens=tokens, input_ids=ids)
    cut = middle(whole)  # type: ignore[arg-type]
    parts = (tokens,) if cut is None else (tokens[: cut.requests], tokens[cut.requests :])
    return max(len(part) if max(part) == size else 0 for part in parts)


def largest_crowd(size: int, most: int, limits: Limits) -> int:
    """The same over every pass of one prompt of `size` tokens, prompts of one token around it and any other
    at the end."""
    best = 0
    for before, behind in itertools.product(range(most), repeat=2):
        for other in range(limits.longest + 1):
            tokens = ((1,) * before + (size,) + (1,) * behind) + ((other,) if other else ())
            if len(tokens) <= most and sum(tokens) <= limits.chunk:
                best = max(best, crowd(tokens, size))
    return best


@pytest.mark.parametrize(
    ("most", "limits"),
    [(8, Limits(40, 90, True)), (3, Limits(32, 32, True)), (6, Limits(20, 64, True)), (1, Limits(9, 9))],
)
def test_a_prompt_of_every_size_shares_a_half_with_many(most: int, limits: Limits) -> None:
    plain = prefill_passes(most, dataclasses.replace(limits, halved=False))
    found = prefill_passes(most, limits)
    assert found[: len(plain)] == plain
    assert all(sum(tokens) <= limits.chunk and len(tokens) <= most for tokens in found)
    assert all(max(tokens) <= limits.longest for tokens in found)
    for (size,) in (tokens for tokens in plain if len(tokens) == 1):
        assert max(crowd(tokens, size) for tokens in found) >= largest_crowd(size, most, limits)
