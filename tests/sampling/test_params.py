"""SamplingParams: limits named in errors, derived device values, the config group, no torch."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from engine.build import make_config, target_class
from engine.errors import UserError
from engine.params import SamplingConfig, SamplingParams, mix64, problems, sample_key
from engine.sampling.asked import SamplingClass

CONF = Path(__file__).parents[2] / "conf" / "sampling"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", -0.1, "from 0.0"),
        ("temperature", math.nan, "number"),
        ("temperature", math.inf, "number"),
        ("temperature", "hot", "number"),
        ("temperature", True, "number"),
        ("top_k", -1, "integer from 0"),
        ("top_k", 1.5, "integer"),
        ("top_p", 0.0, "above 0.0"),
        ("top_p", 1.01, "up to 1.0"),
        ("min_p", -0.5, "from 0.0"),
        ("min_p", 2, "up to 1.0"),
        ("repetition_penalty", 0.0, "above 0.0"),
        ("frequency_penalty", 2.5, "up to 2.0"),
        ("presence_penalty", math.nan, "number"),
        ("logit_bias", [1], "map token ids"),
        ("logit_bias", {-1: 1.0}, "from 0"),
        ("logit_bias", {"7": 1.0}, "integer"),
        ("logit_bias", {7: math.inf}, "logit_bias[7]"),
        ("logit_bias", {7: 101}, "up to 100"),
        ("logit_bias", dict.fromkeys(range(513), 1.0), "512"),
        ("min_tokens", -1, "from 0"),
        ("max_tokens", 0, "from 1"),
        ("max_tokens", 2.0, "integer"),
        ("stop", [1], "text"),
        ("stop", [""], "empty"),
        ("stop", ["x"] * 17, "16"),
        ("stop_token_ids", 5, "list"),
        ("stop_token_ids", [-5], "from 0"),
        ("stop_token_ids", list(range(17)), "16"),
        ("ignore_eos", 1, "true or false"),
        ("include_stop", "yes", "true or false"),
        ("seed", -1, "from 0"),
        ("seed", 1 << 63, "up to 9223372036854775807"),
        ("n", 0, "from 1"),
        ("n", None, "integer"),
        ("logprobs", 21, "up to 20"),
        ("logprobs", -1, "from 0"),
        ("prompt_logprobs", 0, "not supported"),
        ("speculative", 1, "true or false"),
    ],
)
def test_a_bad_value_is_named_with_its_field_and_range(field, value, says):
    with pytest.raises(UserError) as caught:
        SamplingParams(**{field: value})
    message = str(caught.value)
    assert f"sampling.{field}" in message
    assert says in message
    assert "\n" not in message


def test_all_mistakes_are_listed_together():
    with pytest.raises(UserError) as caught:
        SamplingParams(temperature=-1, top_p=2, n=0)
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == [
        "sampling.temperature",
        "sampling.top_p",
        "sampling.n",
    ]


def test_min_tokens_above_max_tokens_is_refused():
    with pytest.raises(UserError, match="min_tokens=9 has to be at most max_tokens=3"):
        SamplingParams(min_tokens=9, max_tokens=3)


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_token_ids_are_checked_against_the_vocabulary(field):
    value = {99: 1.0} if field == "logit_bias" else (99,)
    params = SamplingParams(**{field: value})
    params.check_vocab(100)
    with pytest.raises(UserError, match=f"sampling.{field} names token 99.*ends at 98"):
        params.check_vocab(99)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, SamplingClass()),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0.1}, SamplingClass()),  # filters cannot change a greedy choice
        ({"temperature": 1}, SamplingClass(sampled=True)),
        ({"temperature": 1, "top_k": 5}, SamplingClass(sampled=True, filters=True)),
        ({"temperature": 1, "top_p": 0.9}, SamplingClass(sampled=True, filters=True)),
        ({"temperature": 1, "min_p": 0.1}, SamplingClass(sampled=True, filters=True)),
        ({"repetition_penalty": 1.1}, SamplingClass(shaped=True)),
        ({"frequency_penalty": -0.5}, SamplingClass(shaped=True)),
        ({"presence_penalty": 0.5}, SamplingClass(shaped=True)),
        ({"logit_bias": {3: 1}}, SamplingClass(shaped=True)),
        ({"min_tokens": 1}, SamplingClass(shaped=True)),
        ({"logprobs": 0}, SamplingClass(top_logprobs=0)),
        ({"logprobs": 7}, SamplingClass(top_logprobs=7)),
    ],
)
def test_sampling_class_is_what_must_be_computed(params, expected):
    assert SamplingParams(**params).sampling_class() == expected


def test_row_turns_counts_into_positions():
    params = SamplingParams(
        temperature=0.5, min_tokens=3, max_tokens=10, stop_token_ids=[7, 2], logit_bias={4: -1}
    )
    row = params.row(prompt_len=20, eos_ids=(2, 9), sample_index=0, seed=1, max_context=100)
    assert (row.min_len, row.max_len, row.stop_ids, row.bias) == (23, 30, (7, 2, 9), ((4, -1),))
    assert params.row(20, (2,), 0, 1, max_context=25).max_len == 25
    assert SamplingParams(max_tokens=None).row(20, (), 0, 1, 100).max_len == 100
    assert SamplingParams(ignore_eos=True, stop_token_ids=[7]).row(20, (2,), 0, 1, 100).stop_ids == (7,)


def test_too_many_end_ids_are_refused():
    params = SamplingParams(stop_token_ids=list(range(16)))
    assert len(params.row(1, range(100, 108), 0, 1, 100).stop_ids) == 24
    with pytest.raises(UserError, match="24"):
        params.row(1, range(100, 109), 0, 1, 100)


def test_keys_of_seeds_and_samples_are_distinct_and_reproducible():
    keys = [sample_key(seed, index) for seed in range(200) for index in range(16)]
    assert len(set(keys)) == len(keys)
    assert keys == [sample_key(seed, index) for seed in range(200) for index in range(16)]
    assert all(0 <= key < 1 << 64 for key in keys)


def test_mix64_is_splitmix64():
    golden, state, seen = 0x9E3779B97F4A7C15, 1234567, []
    for _ in range(3):
        state += golden
        seen.append(mix64(state))
    assert seen == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_a_single_stop_text_and_lists_become_tuples():
    params = SamplingParams(stop="\n", stop_token_ids=[1, 2])
    assert (params.stop, params.stop_token_ids) == (("\n",), (1, 2))
    assert hash(params.stop) is not None


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_option_of_the_group_builds(path):
    node = yaml.safe_load(path.read_text())
    cls = target_class(node["_target_"])
    config = make_config(cls, node, "sampling")
    assert isinstance(config, SamplingConfig)
    assert problems(config) == []
    params = SamplingParams.from_config(config)
    assert params.temperature == node["temperature"]
    assert set(node) - {"_target_"} == set(SamplingConfig.__dataclass_fields__)


def test_the_default_option_holds_the_defaults():
    node = yaml.safe_load((CONF / "default.yaml").read_text())
    assert make_config(SamplingParams, node, "sampling") == SamplingConfig(
        logit_bias={}, stop=(), stop_token_ids=()
    )


@pytest.mark.parametrize("given", ["\n", ["\n"]])
def test_a_config_takes_one_stop_text_or_a_list(given):
    config = make_config(SamplingParams, {"stop": given, "logit_bias": {5: -100}}, "sampling")
    params = SamplingParams.from_config(config)
    assert (params.stop, params.logit_bias) == (("\n",), {5: -100.0})


def test_wrong_types_from_a_config_are_named():
    with pytest.raises(UserError, match=r"sampling\.top_k=-3 has to be at least 0"):
        make_config(SamplingParams, {"top_k": -3}, "sampling")
    with pytest.raises(UserError, match=r"temprature.*did you mean temperature"):
        make_config(SamplingParams, {"temprature": 1}, "sampling")


def test_importing_the_parameters_does_not_import_torch():
    code = "import sys, engine.params, engine.sampling.limits; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CONF.parents[1])
