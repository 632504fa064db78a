"""Every rule refuses what it should, says why with both settings, and proposes what works."""

from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import replace

import parts_for_rules
import pytest

import engine
from engine.compose import Resolved, compose
from engine.devices import DeviceFacts, count_gpus
from engine.errors import UserError
from engine.explain import explain
from engine.facts import gather
from engine.rules import check, compose_checked, verdicts
from engine.rules.base import NOT_APPLICABLE, OK, UNKNOWN, VIOLATED

BASE = compose(["model=tiny", "device=cpu"])


@pytest.fixture(autouse=True)
def _parts_are_ours(monkeypatch):
    """The allow-list takes classes of our packages only, so the test's parts stand in as one of them."""
    monkeypatch.setitem(sys.modules, "engine.parts_for_rules", parts_for_rules)
    monkeypatch.setattr(engine, "parts_for_rules", parts_for_rules, raising=False)
    for value in vars(parts_for_rules).values():
        if isinstance(value, type) and value.__module__ == "parts_for_rules":
            monkeypatch.setattr(value, "__module__", "engine.parts_for_rules")


def part(name: str, **options):
    return {"_target_": f"engine.parts_for_rules.{name}", **options}


def configured(**changes) -> Resolved:
    """The base config with whole groups exchanged, or with `group__key` values set."""
    cfg = {key: dict(node) if isinstance(node, dict) else node for key, node in BASE.cfg.items()}
    for key, value in changes.items():
        group, _, name = key.partition("__")
        if name:
            cfg[group][name] = value
        else:
            cfg[group] = value
    return replace(BASE, cfg=cfg)


def verdict(resolved: Resolved, rule: str):
    return next(v for v in verdicts(gather(resolved)) if v.rule == rule)


DRAFT = {"draft_attention": {"_target_": "engine.parts_for_rules.Attention"}}


@pytest.mark.parametrize(
    ("rule", "changes", "expected", "words"),
    [
        ("device", {}, OK, ["CPU"]),
        ("step costs", {}, NOT_APPLICABLE, ["step_costs=cached"]),
        ("step costs", {"step_costs": "none.json"}, VIOLATED, ["step_costs=none.json", "step_costs=cached"]),
        ("step costs", {"step_costs": __file__}, OK, ["is there"]),
        ("device", {"device": "cuda"}, VIOLATED, ["device=cuda", "use device=cpu"]),
        ("attention device", {"attention": part("CudaOnly")}, VIOLATED, ["on cpu, only on cuda"]),
        ("attention device", {"attention": part("Attention")}, OK, []),
        (
            "dtype",
            {"attention": part("HalfOnly"), "model__dtype": "float32"},
            VIOLATED,
            ["model.dtype=float32"],
        ),
        ("dtype", {"attention": part("HalfOnly"), "model__dtype": "bfloat16"}, OK, ["bfloat16"]),
        ("dtype", {"model__dtype": "int4"}, VIOLATED, ["model.dtype=int4", "use model.dtype="]),
        (
            "page size",
            {"attention": part("BigPages")},
            VIOLATED,
            ["cache.page_size=16", "cache.page_size=64"],
        ),
        ("page size", {"attention": part("BigPages"), "cache__page_size": 128}, OK, []),
        ("page size", {"attention": part("BigPages"), "cache__page_size": 120}, VIOLATED, ["page_size=128"]),
        ("verify width", {"spec": part("Drafter", steps=3, **DRAFT)}, OK, ["width 4"]),
        (
            "verify width",
            {"spec": part("Drafter", steps=4, **DRAFT), "attention": part("Narrow")},
            VIOLATED,
            ["spec=none verifies 5", "at most 4", "3 tokens or fewer"],
        ),
        ("tree mask", {}, NOT_APPLICABLE, []),
        ("tree mask", {"spec": part("Drafter", **DRAFT)}, OK, []),
        (
            "tree mask",
            {"spec": part("Drafter", **DRAFT), "attention": part("NoTree")},
            VIOLATED,
            ["no tree mask"],
        ),
        ("draft attention", {}, NOT_APPLICABLE, []),
        ("draft attention", {"spec": part("Drafter", **DRAFT)}, OK, []),
        ("draft attention", {"spec": part("Drafter")}, VIOLATED, ["spec.draft_attention is empty"]),
        (
            "draft dtype",
            {"spec": part("Drafter", draft_attention=part("HalfOnly")), "model__dtype": "float32"},
            VIOLATED,
            ["spec.draft_attention", "float32"],
        ),
        ("draft dtype", {}, NOT_APPLICABLE, []),
        ("own checks", {"spec": part("Drafter", steps=13, **DRAFT)}, VIOLATED, ["spec.steps=13"]),
        ("own checks", {"spec": part("Drafter", steps=12, **DRAFT)}, OK, []),
        ("packages", {"attention": part("Needing")}, VIOLATED, ["a_package_nobody_has", "pip install"]),
        ("packages", {}, OK, []),
        ("step graph", {}, NOT_APPLICABLE, []),
        ("step graph", {"graph": part("StepGraph"), "attention": part("Attention")}, OK, []),
        (
            "step graph",
            {"graph": part("StepGraph"), "attention": part("HostMetadata")},
            VIOLATED,
            ["graph=none"],
        ),
        (
            "step graph",
            {
                "graph": part("StepGraph"),
                "attention": part("Attention"),
                "spec": part("Drafter", draft_attention=part("HostMetadata")),
            },
            VIOLATED,
            ["draft attention"],
        ),
        ("host lengths", {"attention": part("Attention")}, OK, ["nobody"]),
        ("host lengths", {"attention": part("ExactLengths")}, OK, ["mirror", "ExactLengths"]),
        (
            "host lengths",
            {"attention": part("ExactLengths"), "graph": part("StepGraph")},
            VIOLATED,
            ["ExactLengths", "graph=none"],
        ),
        (
            "mode devices",
            {"graph": part("CudaGraph")},
            VIOLATED,
            ["graph=none runs on cuda", "device is cpu"],
        ),
        ("context", {"cache__max_context": 5000}, VIOLATED, ["max_context=5000", "4096", "max_context=4096"]),
        ("context", {"cache__max_context": 4096}, OK, []),
        ("context", {}, NOT_APPLICABLE, []),
        ("pool", {"cache__tokens": 16}, VIOLATED, ["cache.tokens=16", "use cache.tokens=32"]),
        ("pool", {"cache__tokens": 512, "cache__max_context": 1024}, VIOLATED, ["cache.max_context=512"]),
        ("pool", {"cache__tokens": 1024, "cache__max_context": 1024}, OK, []),
        ("answer", {"sampling__max_tokens": 4096}, VIOLATED, ["sampling.max_tokens=4096", "2048"]),
        ("answer", {"sampling__max_tokens": None}, NOT_APPLICABLE, []),
        ("answer", {"cache__tokens": 128}, VIOLATED, ["holds 128 tokens"]),
        ("sampling", {"sampling__min_tokens": 9, "sampling__max_tokens": 3}, VIOLATED, ["min_tokens"]),
        ("sampling", {"sampling__stop_token_ids": [512]}, VIOLATED, ["512", "vocabulary"]),
        ("sampling", {}, OK, []),
        ("model", {"model__heads": 3}, VIOLATED, ["model.heads=3", "kv_heads"]),
        ("model", {}, OK, ["tiny"]),
        ("workload", {"workload": {"_target_": "engine.workloads.file.FileWorkload"}}, VIOLATED, ["path"]),
        (
            "workload",
            {"workload": {"_target_": "engine.workloads.file.FileWorkload"}, "prompt": "hi"},
            NOT_APPLICABLE,
            [],
        ),
    ],
)
def test_rule(rule, changes, expected, words):
    found = verdict(configured(**changes), rule)
    assert found.verdict == expected, found
    assert found.reason
    for word in words:
        assert word in found.reason


def test_composite_facts_are_its_childrens():
    pair = part("Pair", prefill=part("Attention"), decode=part("ExactLengths"))
    found = explain(configured(attention=pair))
    assert found.needs_cpu_seq_lens
    assert found.caused_by == ("target attention (Pair)",)
    calm = explain(configured(attention=part("Pair", prefill=part("Attention"), decode=part("Attention"))))
    assert not calm.needs_cpu_seq_lens


def test_all_violations_of_a_line_are_raised_together():
    broken = configured(device="cuda", cache__max_context=5000, sampling__max_tokens=5000)
    with pytest.raises(UserError) as caught:
        check(broken)
    assert len(str(caught.value).splitlines()) >= 3


def test_names_values_and_rules_come_together():
    with pytest.raises(UserError) as caught:
        compose_checked(["attention=nope", "model=tiny", "sampling.max_tokens=5000", "cache.page_size=0"])
    lines = str(caught.value).splitlines()
    assert [any(word in line for line in lines) for word in ("nope", "max_tokens=5000", "page_size=0")] == [
        True
    ] * 3


def test_foreign_distribution_called_kernels_is_refused(monkeypatch):
    versions = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda n: "0.9" if n == "kernels" else versions(n))
    found = verdict(BASE, "foreign kernels")
    assert found.verdict == VIOLATED
    assert "pip uninstall kernels" in found.reason


@pytest.mark.parametrize(
    ("facts", "expected", "words"),
    [
        (DeviceFacts("cuda", "cuda", 0, 2, True), OK, "one of 2"),
        (DeviceFacts("cuda:2", "cuda", 2, 2, True), VIOLATED, "use device=cuda:1"),
        (DeviceFacts("cuda", "cuda", 0, 0, True), VIOLATED, "no NVIDIA GPU"),
        (DeviceFacts("cuda", "cuda", 0, 1, False), VIOLATED, "built without CUDA"),
        (DeviceFacts("cuda", "cuda", 0, None, True), UNKNOWN, "torch decides"),
    ],
)
def test_device_rule(facts, expected, words):
    gathered = replace(gather(BASE), device=facts)
    found = next(v for v in verdicts(gathered) if v.rule == "device")
    assert found.verdict == expected
    assert words in found.reason


@pytest.mark.parametrize(
    ("files", "environ", "count"),
    [
        ([], {}, 0),
        (["nvidia0"], {}, 1),
        (["nvidia0", "nvidia1", "nvidiactl"], {}, 2),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, 1),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": ""}, 0),
        (["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, 1),
        (["dxg"], {}, None),
    ],
)
def test_gpus_are_counted_without_torch(tmp_path, files, environ, count):
    (tmp_path / "dev").mkdir()
    for name in files:
        (tmp_path / "dev" / name).touch()
    assert count_gpus(tmp_path, environ) == count
