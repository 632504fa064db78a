"""On a GPU: step costs leave no trace, stages are timed by events, adaptive output is plain decoding's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines import answers, make

from engine.compiled import COMPILED
from engine.params import SamplingParams
from engine.scratch_steps import ScratchSteps
from engine.spec_metrics import spec_figures

pytestmark = pytest.mark.gpu
CUDA = ("model=tiny", "model.dtype=float32", "device=cuda", "scheduler.max_running=4")
SMALL = ("cache.max_context=256", "cache.tokens=4096", "scheduler.chunk_tokens=128", "sampling.max_tokens=60")
DUMMY = ("spec=eagle3", "spec.load=dummy", "spec.adaptive=true", "step_costs=measure")
PROMPTS = [[5, 6, 7, 8], [9, 8, 7], [100, 101, 102]]
PARAMS = SamplingParams(max_tokens=60, ignore_eos=True)


def test_adaptive_drafts_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with make(*CUDA, *SMALL, "overlap=none") as llm:
        plain = answers(llm.generate(PROMPTS, PARAMS))
    with make(*CUDA, *SMALL, *DUMMY) as llm:
        table, pool = llm._container.table(), llm._container.pool()
        assert not table.tokens.any()
        assert not table.seq_lens.any()
        assert not pool.layers[0].k.any()
        assert llm.step_costs is not None
        assert {batch for batch, _ in llm.step_costs.seconds} <= {1, 2, 4}
        assert all(0 < cost < 60 for cost in llm.step_costs.seconds.values())  # the card may be shared
        llm.metrics.stages.on = True
        assert answers(llm.generate(PROMPTS, PARAMS)) == plain
        figures = spec_figures(llm.metrics.spec_counts(), llm.metrics.decode_results, 4)
    shares = figures["time_shares"]
    assert shares is not None
    assert 0 < shares["verify"] < 1
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("graph", ["none", "step"])
@pytest.mark.parametrize(
    "spec", [("spec=ngram",), ("spec=eagle3", "spec.load=dummy")], ids=["ngram", "eagle3"]
)
def test_a_check_on_a_gpu_leaves_no_trace(
    graph: str, spec: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are run, and told to take what a card takes that nobody shares."""
    real, seen = ScratchSteps.seconds, list[tuple[int, int]]()

    def seconds(self: ScratchSteps, batch: int, width: int, resume: bool) -> float:
        assert real(self, batch, width, resume) > 0
        seen.append((batch, width))
        return 1e-3 * (1 + 0.1 * width + 0.01 * batch)

    monkeypatch.setattr(ScratchSteps, "seconds", seconds)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = (*CUDA, *SMALL, "attention=triton", *spec, "spec.adaptive=true", f"graph={graph}")
    with make(*options) as llm:
        measured = llm.step_costs
    (file,) = (tmp_path / "syncless" / "step_costs").iterdir()
    text = file.read_bytes()
    seen.clear()
    with make(*options) as llm:
        assert llm.step_costs == measured
        assert set(seen) == {(1, 1), (1, max(llm.spec.measures))}
        assert file.read_bytes() == text
        table, pool = llm._container.table(), llm._container.pool()
        for tensor in (table.tokens, table.seq_lens, pool.layers[0].k, table.columns.output_counts):
            assert tensor is not None
            assert not tensor.any()
        seen.clear()
        compiled = COMPILED.total
        checked = answers(llm.generate(PROMPTS, PARAMS))
        assert COMPILED.total == compiled
        assert not seen
    with make(*options, f"step_costs={file}") as llm:
        assert answers(llm.generate(PROMPTS, PARAMS)) == checked
    assert not seen, "a pinned table is not checked"
