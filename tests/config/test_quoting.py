"""Free text survives Hydra's grammar, OmegaConf's interpolation and the snapshot, byte for byte."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compose import compose
from engine.quoting import is_quoted, quote
from engine.runs import dump_yaml

NASTY = [
    "Write a haiku!",
    "It's",
    "a, b (c) [d] {e}",
    "two\nlines",
    "tab\there",
    "„Wie geht\u2019s?“ — 你好 👋🏽",
    "true",
    "null",
    "1e3",
    "007",
    "${x}",
    "${oc.env:HOME}",
    r"\${x}",
    r"\\${x}",
    "ends with \\",
    "ends with \\\\",
    r"a \' b",
    "'half",
    'half"',
    '"Hello" and "bye"',
    "a=b",
    "key: value",
    " spaces around ",
    "%s @ & | ; # ~",
    "-",
    "--help",
    "$HOME `ls`",
    r"\n stays two characters",
    "~/models/a b@1,2%3=x.gguf",
]


@pytest.mark.parametrize("text", NASTY)
def test_prompt_is_verbatim(text):
    resolved = compose([f"prompt={text}"])
    assert resolved.cfg["prompt"] == text
    assert compose(resolved.overrides).cfg["prompt"] == text, "the recorded overrides say the same"
    assert yaml.safe_load(dump_yaml(dict(resolved.cfg)))["prompt"] == text


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("key", ["model.path", "workload.path"])
def test_path_is_verbatim(key, text):
    group = key.partition(".")[0]
    option = {"model": "model=local", "workload": "workload=file"}[group]
    assert compose([option, f"{key}={text}"]).cfg[group]["path"] == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a b'", "a b"),
        ('"a b"', "a b"),
        (r"'It\'s'", "It's"),
        ("'${x}'", "${x}"),
        (r"'\${x}'", "${x}"),
        ("'true'", "true"),
        ('"1e3"', "1e3"),
    ],
)
def test_text_in_a_matching_pair_of_quotes_is_hydras_own(text, value):
    assert compose([f"prompt={text}"]).cfg["prompt"] == value


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(alphabet="ab\\'\"${}, \n(=:", max_size=10), st.text(max_size=16)))
def test_any_text_round_trips_through_the_grammar(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    if is_quoted(text):
        return
    value = OverridesParser.create().parse_override(f"prompt={quote(text)}").value()
    config = OmegaConf.create({"prompt": value})
    assert OmegaConf.to_container(config, resolve=True) == {"prompt": text}


def test_quoting_twice_changes_nothing():
    for text in NASTY:
        assert quote(quote(text)) == quote(text)


def test_a_sweep_takes_a_list_of_quoted_texts():
    assert quote("'a','b'", sweep=True) == "'a','b'"
    assert quote("a,b", sweep=True) == "'a,b'"
    assert not is_quoted("'a','b'")


@pytest.mark.parametrize("value", ["seed=3", "sampling.temperature=0.5", "cache.page_size=4"])
def test_numbers_stay_numbers(value):
    key, _, text = value.partition("=")
    node = compose([value]).cfg
    for part in key.split("."):
        node = node[part]
    assert node == float(text)
    assert not isinstance(node, str)
