"""Options of spec=eagle3: what they ask of the engine, which are refused and how, what memory they cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from eagle3_cases import CONFIG, tensors_of, write
from support.eagle3 import CHAIN, TREE, draft_of, engine
from support.engines import make

from engine.compose import compose
from engine.errors import UserError
from engine.explain import explain
from engine.rules import check
from speculative.base import SpecPlan
from speculative.eagle3.drafter import Eagle3

TINY_EAGLE = ("model=tiny", "model.dtype=float32", "spec=eagle3", "spec.adaptive=false")


@pytest.mark.parametrize(
    ("values", "plan"),
    [
        ({}, SpecPlan(5, 3, False, True, True, True)),
        ({"num_steps": 1, "num_draft_tokens": 2}, SpecPlan(2, 0, False, False, True, True)),
        (
            {"num_steps": 3, "topk": 4, "num_draft_tokens": 16},
            SpecPlan(16, 0, True, True, True, True, scratch=8, depth=3),
        ),
        (
            {"num_steps": 1, "topk": 4, "num_draft_tokens": 5},
            SpecPlan(5, 0, True, False, True, True, scratch=0, depth=1),
        ),
        ({"num_steps": 7}, SpecPlan(8, 6, False, True, True, True)),
        ({"num_steps": 2, "topk": 4}, SpecPlan(5, 0, True, True, True, True, scratch=4, depth=2)),
        ({"simulate_accept_length": 3.0}, SpecPlan(5, 3, False, True, True, True, simulated=3.0)),
    ],
)
def test_plan(values: dict[str, object], plan: SpecPlan) -> None:
    config = Eagle3.Config(**{"adaptive": False, **values})  # type: ignore[arg-type]
    assert Eagle3.planned(config) == plan
    assert Eagle3.check(config) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["spec.num_steps=7", "spec.num_draft_tokens=5"],
            ["spec.num_draft_tokens=5", "use spec.num_draft_tokens=8", "spec.num_steps=4"],
        ),
        (
            ["spec.topk=2", "spec.num_steps=2", "spec.num_draft_tokens=8"],
            ["6 candidates", "num_draft_tokens=7"],
        ),
        (
            ["spec.topk=8", "spec.num_steps=3", "spec.num_draft_tokens=5"],
            ["8 siblings", "spec.num_draft_tokens=9"],
        ),
        (
            ["spec.topk=2", "spec.num_steps=6", "spec.num_draft_tokens=5"],
            ["a path of 6", "spec.num_draft_tokens=7"],
        ),
        (
            ["spec.topk=2", "spec.acceptance=ratio"],
            ["spec.acceptance=ratio", "spec.topk=2", "acceptance=match"],
        ),
        (["spec.load=dummy", "spec.draft=/some/where"], ["spec.load=dummy", "/some/where", "leave one"]),
        (["spec.simulate_accept_length=6"], ["spec.simulate_accept_length=6", "at most 5"]),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        check(compose([*TINY_EAGLE, *overrides]))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], ["no draft comes with the package for model=tiny", "spec.draft=FOLDER", "spec=ngram"]),
        (["spec.draft=/no/such/folder"], ["spec.draft=/no/such/folder", "does not exist"]),
    ],
)
def test_a_draft_that_is_not_there_is_refused_by_the_rules(overrides: list[str], words: list[str]) -> None:
    reason = objection([*TINY_EAGLE, *overrides])
    for word in words:
        assert word in reason


def test_a_target_without_states_is_refused_by_name() -> None:
    reason = objection(["model=fake", "spec=eagle3", "spec.load=dummy"])
    assert "spec=eagle3 reads the states" in reason
    assert "model=fake" in reason
    assert "spec=none" in reason


def objection(overrides: list[str]) -> str:
    [verdict] = [v for v in explain(compose(overrides)).verdicts if v.rule == "draft model"]
    assert verdict.violated
    return verdict.reason


def test_a_draft_of_another_target_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "draft", CONFIG, tensors_of(CONFIG))
    (folder / "model.safetensors").unlink()  # nobody may need it for that
    with pytest.raises(UserError, match=r"a draft for another target.*96, not 512"):
        check(compose([*TINY_EAGLE, f"spec.draft={folder}"]))


@pytest.mark.parametrize("shape", [CHAIN, TREE, (*CHAIN, "spec.adaptive=true")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_plan_holds_what_is_allocated(shape: tuple[str, ...], dtype: str) -> None:
    """K11: the draft's weights, its KV and what it relays are in the plan, known without torch."""
    sizes = ("cache.tokens=1024", "cache.max_context=512", "scheduler.max_running=3")
    overrides = ["model=tiny", f"model.dtype={dtype}", *shape, *sizes]
    found = explain(compose(overrides)).plan
    assert found is not None
    items = {item.name: item.bytes for item in found.items}
    assert ("draft scratch" in items) == ("spec.topk=3" in shape)
    with make(*overrides, "threads=1", parts={"costs": None}) as llm:
        container = llm._container
        pool, table = container.draft_pool(), container.table()
        assert items["draft kv pool"] + items.get("draft scratch", 0) == pool.nbytes()
        assert items["rows"] == table.nbytes()
        assert items["draft weights"] == pytest.approx(draft_of(llm).nbytes(), rel=0.02)


def test_the_published_form_loads_and_runs(tmp_path: Path) -> None:
    config = {**CONFIG, "vocab_size": 512, "draft_vocab_size": 256}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    folder = write(tmp_path / "draft", config, tensors_of(config))
    with engine("spec=eagle3", f"spec.draft={folder}") as llm:
        assert llm._container.model().aux_layers == (1, 2, 3)
        [output] = llm.generate([[1, 2, 3]])
    assert output.completions[0].token_ids


def test_a_folder_without_a_config_is_refused_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"spec\.draft=.*there is no .*config\.json; give the folder"):
        check(compose([*TINY_EAGLE, f"spec.draft={tmp_path}"]))
