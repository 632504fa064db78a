"""An engine whose products are computed by a table: the same answers, a record of it, and a word of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from linear_cases import CPU
from support.engines import answers, make

from engine.cli.main import main
from engine.compose import compose
from engine.explain import explain, kernels_text
from engine.kernel_choices.plans import BEST, BUCKETS, LINEAR, NORM_GATED, NORM_LINEAR, Place, Plan
from engine.kernel_choices.table import (
    INTERPRETER,
    ChoiceTable,
    Circumstances,
    Entry,
    as_document,
    from_document,
)
from engine.params import SamplingParams
from engine.replay.cli import main as replay

TINY = (
    "model=tiny", "model.dtype=float32", "model.layers=2", "model.heads=3", "model.kv_heads=1",
    "model.vocab=259", "model.qkv_bias=true", "threads=1", "device=cpu", "scheduler.chunk_tokens=24",
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=4, ignore_eos=True)
PROMPTS = [[5], [(13 * i) % 251 for i in range(40)]]
DRAFTS = (
    "spec=eagle3", "spec.load=dummy", "spec.num_draft_tokens=4", "spec.adaptive=false",
)  # fmt: skip
CASES = {
    "none": (),
    "chain": ("spec.num_steps=3", *DRAFTS),
    "tree": ("spec.num_steps=2", "spec.topk=2", *DRAFTS),
}
SITES = (  # of the model above, and of a dummy draft for it
    (NORM_LINEAR, 80, 64), (LINEAR, 64, 48), (NORM_GATED, 256, 64), (LINEAR, 64, 128), (LINEAR, 259, 64),
    (LINEAR, 80, 128), (LINEAR, 64, 192), (BEST, 259, 64),
)  # fmt: skip
FEW = [bucket for bucket in BUCKETS if bucket <= 64]  # what all stages are measured at


def plan_for(stage: str, bucket: int) -> Plan:
    """Rows up to four tokens, tiles up to 64; all that can be fused is at some of the buckets."""
    fused = bucket % 3 != 2
    kernel = ("rows", 64, 64) if bucket <= 4 else ("tile", 64, 64)
    split = 2 if stage == LINEAR and bucket <= 2 else 1
    return Plan(
        kernel[0], kernel[1], 32 if split == 2 else kernel[2], split=split, norm=fused and stage != LINEAR,
        gate=fused and stage == NORM_GATED,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    entries = {
        Place(stage, "float32", bucket, n, k): Entry(plan_for(stage, bucket), 1e-6, 2e-6)
        for stage, n, k in SITES
        for bucket in FEW
    }
    path = tmp_path / "choices.json"
    path.write_text(json.dumps(as_document(ChoiceTable(Circumstances.here(INTERPRETER), entries))))
    return path


@CPU
@pytest.mark.parametrize("drafts", CASES.values(), ids=CASES)
def test_answers_do_not_depend_on_the_table(
    drafts: tuple[str, ...], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import backends.triton_products as ops

    used = 0
    plain = ops.product

    def counted(*operands: object, **named: object) -> object:
        nonlocal used
        used += 1
        return plain(*operands, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ops, "product", counted)
    found = []
    for setting in ("torch", str(table)):
        with make(*TINY, "attention=triton", f"kernels={setting}", *drafts) as llm:
            found.append(answers(llm.generate(PROMPTS, GREEDY)))
            assert from_document(llm.measured["kernels"]).entries.keys() == (
                from_document(json.loads(table.read_text())).entries.keys() if used else set()
            )
    assert found[0] == found[1]
    assert used > 20


@CPU
def test_answers_of_step_graphs_do_not_depend_on_the_table(table: Path) -> None:
    found = []
    for setting in ("torch", str(table)):
        line = (*TINY, "attention=triton", "graph=step", "graph.sizes=[2]", f"kernels={setting}")
        with make(*line) as llm:
            found.append([answers(llm.generate(PROMPTS, GREEDY)) for _ in range(2)])
    assert found[0] == found[1]


@CPU
def test_the_table_goes_into_the_run_folder(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = [*TINY, "attention=triton", f"kernels={table}", "prompt=ab", "sampling.max_tokens=2"]
    assert main(line) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    run = json.loads((folder / "run.json").read_text())
    assert run["measured"] == {"kernels": "kernels.json"}
    kept = from_document(json.loads((folder / "kernels.json").read_text()))
    assert kept == from_document(json.loads(table.read_text()))

    table.unlink()  # a replay has its own, whatever this machine has measured since
    assert replay([str(folder)]) == 0
    out = capsys.readouterr().out
    assert "identical" in out
    again = json.loads((Path(out.splitlines()[-1]) / "kernels.json").read_text())
    assert from_document(again) == kept


@CPU
def test_a_backend_without_own_kernels_says_that_a_table_is_not_used(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), make(*TINY, "attention=torch", f"kernels={table}") as llm:
        assert llm.measured == {}
    assert f"kernels={table} is not used" in caplog.text


def test_explained(table: Path) -> None:
    def text(*overrides: str) -> str:
        return kernels_text(explain(compose([*TINY, *overrides])).facts)

    assert "the attention backend follows no table" in text("attention=torch")
    told = text("attention=triton", "device=cpu")
    assert "no table for Triton's interpreter" in told
    assert "tune_kernels" not in told  # it measures GPUs
    assert "kernels=torch" in text("attention=triton", "kernels=torch")
    assert f"own kernels at {len(FEW) * len(SITES)} of" in text("attention=triton", f"kernels={table}")
    refused = explain(compose([*TINY, "kernels=none.json"]))
    assert not refused.accepted
    assert [v.reason for v in refused.verdicts if v.violated] == [
        "kernels=none.json does not exist; give a table that `python -m benchmarks.tune_kernels --out FILE` "
        "wrote, or kernels=auto"
    ]


def test_an_impossible_plan_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    place = Place(LINEAR, "bfloat16", 1, 64, 64)
    entries = {place: Entry(Plan("direct", 8, 128, 1, turns=10**9), 1e-6, 2e-6)}
    path = tmp_path / "hostile.json"
    path.write_text(
        json.dumps(as_document(ChoiceTable(Circumstances("NVIDIA H200", "2.11", "3.6"), entries)))
    )
    refused = explain(compose([*TINY, f"kernels={path}"]))
    (reason,) = [v.reason for v in refused.verdicts if v.violated]
    assert "linear bfloat16, 1 token, 64 x 64 cannot work: operations that are written out" in reason
    assert "or kernels=auto" in reason
