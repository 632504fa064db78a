"""Overrides to a plain config: names, values and types refused together; no process-wide state is left."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields, is_dataclass, replace

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from engine.build import TARGET, parts_of, target_class
from engine.compose import compose, compose_draft
from engine.conf_tree import CONF, conf_tree
from engine.errors import UserError
from engine.overrides import check_overrides

TREE = conf_tree()
OPTIONS = [(group, option) for group, options in TREE.groups.items() for option in options]
GROUPS = {
    "model",
    "attention",
    "spec",
    "overlap",
    "tbo",
    "pcg",
    "graph",
    "cache",
    "sampling",
    "workload",
    "task",
}


def problems(*overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        compose(overrides)
    return str(caught.value).splitlines()


def test_every_group_of_the_design_has_a_default_that_exists():
    assert set(TREE.defaults) >= GROUPS
    for group, option in TREE.defaults.items():
        assert option in TREE.groups[group]
    order = list(TREE.defaults)
    assert order.index("attention") > order.index("spec")


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_option_composes_is_described_and_names_a_class_of_ours(group, option):
    assert TREE.groups[group][option].summary, "its yaml opens with a comment line: --help shows it"
    node = compose([f"{group}={option}"]).cfg[group]
    assert isinstance(target_class(node[TARGET]), type)


def undeclared(node, where):
    """Config fields that the yaml leaves out: Hydra would refuse to set them."""
    cls = target_class(node[TARGET])
    config = getattr(cls, "Config", None)
    names = [field.name for field in fields(config)] if config and is_dataclass(config) else []
    found = [f"{where}.{name}" for name in names if name not in node]
    return found + [x for key, part in parts_of(node).items() for x in undeclared(part, f"{where}.{key}")]


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_yaml_spells_out_every_option_with_the_class_default(group, option):
    node = compose([f"{group}={option}"]).cfg[group]
    assert undeclared(node, group) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["attention=nope"], [["attention=nope", "attention has no option nope", "torch"]]),
        (["attention=torhc"], [["did you mean torch?"]]),
        (["atention=torch"], [["atention=torch", "did you mean attention?"]]),
        (["overlap=true"], [["overlap=true", "it has future, none"]]),
        (["overlap=false"], [["overlap=false", "it has future, none"]]),
        (["tbo=null"], [["tbo=null", "it has none, two_batch"]]),
        (["spec="], [["spec=", "eagle3", "none"]]),
        (["spec=none,ngram"], [["several options of spec", "add -m"]]),
        (["cache={page_size: 3}"], [["cache has no option"]]),
        (["model.dtyp=bf16"], [["model.dtyp", "did you mean dtype?"]]),
        (["+foo=1"], [["+foo=1", "there is no foo"]]),
        (["++foo.bar=1"], [["there is no foo"]]),
        (["++cache.page_size=abc"], [["cache.page_size=abc", "an integer"]]),
        (["+cache.page_siez=3"], [["cache.page_siez", "did you mean page_size?"]]),
        (["spec.num_stpes=3"], [["spec.num_stpes", "no options"]]),
        (["+spec.num_stpes=3"], [["spec.num_stpes", "no options"]]),
        (["spec.draft_attention=null"], [["spec.draft_attention"]]),
        (
            ["attention=hybrid", "attention.prefill=null"],
            [["attention.prefill", "attention@attention.prefill="]],
        ),
        (["attention=hybrid", "attention.decode.kv_split=1"], [["did you mean kv_splits?"]]),
        (["attention=hybrid", "attention@attention.decode=nope"], [["attention has no option nope"]]),
        (["attention=torch", "attention@attention.decode=torch"], [["attention@attention.decode"]]),
        (["cache.page_size=-3"], [["cache.page_size=-3", "at least 1"]]),
        (["page_size=4"], [["did you mean cache.page_size?"]]),
        (["~spec"], [["nothing can be removed"]]),
        (["hello"], [["hello is not an override", "key=value"]]),
        (["overlap=none", "overlap=future"], [["overlap is chosen twice"]]),
        (["sampling.stop=[a"], [["sampling.stop=[a", "cannot be read", "quotes"]]),
        (["prompt="], [["prompt is empty"]]),
        (["prompt=''"], [["prompt is empty"]]),
        (["prompt=  "], [["prompt is empty"]]),
        (["device=gpu"], [["device=gpu", "cuda:N"]]),
        (["seed=-1"], [["seed=-1", "at least 0"]]),
        (["seed=yes"], [["seed=yes", "an integer or null"]]),
        (["threads=0"], [["threads=0", "at least 1"]]),
        (["hydra.rn.dir=x"], [["hydra.rn.dir"]]),
        (["+hydra.rn=x"], [["hydra.rn"]]),
        (["seed=${nowhere}"], [["nowhere"]]),
        (
            ["attention=nope", "model.dtyp=bf16", "overlap=true", "cache.page_size=0", "sampling.top_p=7"],
            [["attention"], ["overlap"], ["model.dtyp"], ["cache.page_size=0"], ["sampling.top_p=7"]],
        ),
        (["overlap=nope", "overlap.debug=true"], [["overlap=nope"]]),  # no second complaint about its keys
        (["sampling.stop=[a", "prompt="], [["cannot be read"], ["prompt is empty"]]),
    ],
)
def test_mistakes_are_named_all_together(overrides, expected):
    found = problems(*overrides)
    assert len(found) == len(expected), found
    for line, words in zip(found, expected, strict=True):
        for word in words:
            assert word in line
        assert "Traceback" not in line


def test_a_group_of_one_option_says_so():
    tree = conf_tree()
    groups = {**tree.groups, "tbo": {"none": tree.groups["tbo"]["none"]}}
    (problem,) = check_overrides(["tbo=null"], replace(tree, groups=groups)).problems
    assert "its only option is none" in problem


def test_hydras_keys_can_be_set():
    assert compose(["hydra.run.dir=/tmp/a b/x"]).run_dir == "/tmp/a b/x"
    assert compose(["++hydra.run.dir=there"]).run_dir == "there"


def test_run_folder_names_differ_by_microseconds():
    assert len({compose([]).run_dir for _ in range(3)}) == 3


def test_a_nested_part_is_chosen_by_its_place():
    node = compose(["attention=hybrid", "attention@attention.decode=torch"]).cfg["attention"]
    assert node["decode"] == node["prefill"]
    assert (
        compose(["attention=hybrid", "attention.decode.kv_splits=2"]).cfg["attention"]["decode"]["kv_splits"]
        == 2
    )


def test_plus_signs_on_known_keys_set_them():
    assert compose(["++cache.page_size=4", "+sampling.n=2"]).cfg["cache"]["page_size"] == 4


def test_recomposing_the_recorded_overrides_gives_the_same_config():
    first = compose(["model=tiny", "++cache.page_size=4", "prompt=It's, ok", "sampling.stop=['a','b']"])
    assert compose(first.overrides).cfg == first.cfg


def test_result_is_plain_data():
    def kinds(value):
        if isinstance(value, dict):
            return {type(value)}.union(*(kinds(v) for v in value.values()))
        return {type(value)}.union(*(kinds(v) for v in value)) if isinstance(value, list) else {type(value)}

    resolved = compose([])
    assert kinds(resolved.cfg) <= {dict, list, str, int, float, bool, type(None)}
    assert "hydra" not in resolved.cfg
    assert resolved.choices["overlap"] == "future"


def test_composing_inside_another_hydra_program_leaves_it_alone(tmp_path):
    (tmp_path / "config.yaml").write_text("a: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3", job_name="host"):
        host = GlobalHydra.instance().hydra
        before = HydraConfig.instance().cfg
        assert compose(["cache.page_size=4"]).cfg["cache"]["page_size"] == 4
        assert GlobalHydra.instance().hydra is host
        assert HydraConfig.instance().cfg is before
        assert hydra_compose("config").a == 1


def test_a_strangers_conf_in_the_working_directory_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("stranger: 1\n")
    monkeypatch.chdir(tmp_path)
    assert "stranger" not in compose([]).cfg
    assert CONF.is_absolute()


def test_draft_keeps_what_can_be_composed():
    draft = compose_draft(["attention=nope", "cache.page_size=4"])
    assert draft.resolved.cfg["cache"]["page_size"] == 4
    assert len(draft.problems) == 1


def test_missing_conf_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="installation is incomplete"):
        conf_tree(tmp_path)


def test_composing_and_rules_do_not_import_torch():
    code = (
        "import sys; from engine.rules import compose_checked; from engine.explain import explain\n"
        "explain(compose_checked(['model=tiny'])); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, timeout=60, check=False)
    assert done.returncode == 0
