"""Whether two engines of a benchmark fit into memory: what is free, what they take, and the way out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.engines import TINY, make

from engine.memory import MemoryItem, MemoryPlan
from engine.params import SamplingParams
from engine.pool_size import Owned
from engine.tasks import bench_turns
from engine.tasks.bench_side import Side
from engine.tasks.drive import Job
from engine.tasks.memory_use import free_memory_bytes, is_out_of_memory
from engine.workloads.base import WorkItem


def proc(root: Path, available: int, limit: str = "max", used: int = 0, files: int = 0) -> Path:
    group = root / "sys/fs/cgroup/own"
    for folder in (root / "proc/self", group):
        folder.mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99999 kB\nMemAvailable:   {available} kB\n")
    (root / "proc/self/cgroup").write_text("1:cpu:/other\n0::/own\n")
    for name, text in (("max", limit), ("current", str(used)), ("stat", f"anon 5\nfile {files}\n")):
        (group / f"memory.{name}").write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("limits", "free"),
    [((100,), 102400), ((100, "4000", 1000, 300), 3300), ((1, "4000", 1000), 1024), ((9, "50", 60, 0), 0)],
)
def test_free_memory_is_the_least_that_anybody_leaves(tmp_path: Path, limits: Any, free: int) -> None:
    assert free_memory_bytes("cpu", proc(tmp_path, *limits)) == free


def test_free_memory_is_unknown_where_nobody_says(tmp_path: Path) -> None:
    assert free_memory_bytes("cpu", tmp_path) is None


@pytest.mark.parametrize(
    ("free", "max_tokens", "said"),
    [
        (1000, 8, None),
        (None, 8, None),
        (999, 8, "cache.tokens=32 holds all these requests and leaves room for both"),
        (249, 8, "a smaller cache.tokens"),  # two take 1250 at least
        (250, 8, "cache.tokens=32 holds"),
        (999, 4096, "a smaller cache.tokens"),
        (999, None, "a smaller cache.tokens"),
    ],
)
def test_what_is_free_decides_and_the_way_out_is_a_number(
    monkeypatch: pytest.MonkeyPatch, free: int | None, max_tokens: int | None, said: str | None
) -> None:
    monkeypatch.setattr(bench_turns, "free_memory_bytes", lambda device: free)
    plan = MemoryPlan((MemoryItem("weights", 600, "-"), MemoryItem("kv pool", 400, "-", grows=True)))
    engine = SimpleNamespace(memory_plan=plan, device="cpu", kv_tokens=512, owned=Owned(16, width=5))
    side: Any = SimpleNamespace(engine=engine, items=(WorkItem(prompt="x"),))
    side._jobs = (Job(0, (1, 2, 3), SamplingParams(max_tokens=max_tokens)),)
    side.tokens = Side.tokens.fget(side)  # type: ignore[attr-defined]
    reason = bench_turns._no_room(side)
    assert (reason == "") is (said is None)
    assert (said or "") in reason


@pytest.mark.parametrize("page", [1, 16, 256])
def test_the_pool_that_is_named_holds_all_requests_at_once(page: int) -> None:
    """With drafts, whatever the page: nobody waits for another to end, and nobody is put back."""
    prompts, params = [[5, 6, 7, 8] * 6, [9, 8, 7]], SamplingParams(max_tokens=40, ignore_eos=True)
    owned = Owned(page, width=5)
    tokens = sum(owned.slots(len(ids) + 40) for ids in prompts)
    drafts = ("spec=ngram", "spec.drafts=4", "spec.adaptive=false", "sampling.max_tokens=40")
    with make(*TINY, *drafts, f"cache.tokens={tokens}", f"cache.page_size={page}") as llm:
        assert (llm.owned, llm.kv_tokens) == (owned, tokens)
        both = llm.generate(prompts, params)
        begun, ended = ([output.completions[0].token_times[i] for output in both] for i in (0, -1))
        assert max(begun) < min(ended)
        assert llm.metrics.retractions == 0


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError("x"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_of_memory(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one
