"""config.json of a draft in all its spellings: what is read, guessed with a warning, or refused by name."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers
from eagle3_cases import CONFIG, USUAL, target_shape

from engine.errors import UserError
from engine.models.rope import rope_tables
from engine.models.shape import ModelShape
from speculative.eagle3.fit import fit_to, usual_layers
from speculative.eagle3.shape import Eagle3Shape, parse_shape

IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}


@pytest.fixture(autouse=True)
def _warnings_only(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever level a run in this process left behind."""
    caplog.set_level(logging.WARNING, "syncless")


def parsed(**changes: Any) -> Eagle3Shape:
    """Keys set to ... are left out."""
    return parse_shape({k: v for k, v in {**CONFIG, **changes}.items() if v is not ...}, "config.json")


def fitted(target: ModelShape | None = None, **changes: Any) -> Eagle3Shape:
    return fit_to(parsed(**changes), target or target_shape(), "toy", "config.json")


def refused(match: str, target: ModelShape | None = None, **changes: Any) -> None:
    with pytest.raises(UserError, match=match):
        fitted(target, **changes)


def test_sizes() -> None:
    shape = fitted()
    layer = shape.layer
    assert (layer.hidden_size, layer.intermediate_size, layer.vocab_size) == (64, 96, 96)
    assert (layer.num_heads, layer.num_kv_heads, layer.head_dim, layer.max_positions) == (4, 2, 16, 256)
    assert (layer.rms_eps, layer.num_layers) == (1e-5, 1)
    assert (shape.draft_vocab, shape.target_hidden, shape.states_width) == (48, 64, 192)


def test_sizes_left_out() -> None:
    layer = parsed(num_key_value_heads=..., max_position_embeddings=...).layer
    assert (layer.num_kv_heads, layer.head_dim, layer.max_positions) == (4, 16, 2048)
    shape = parsed(draft_vocab_size=None, target_hidden_size=None, head_dim=40)
    assert (shape.draft_vocab, shape.target_hidden, shape.layer.head_dim) == (None, None, 40)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_theta": ..., "rope_scaling": {"type": "default", "rope_theta": 1e6}},
        {"rope_theta": 1e6, "rope_scaling": None},
    ],
)
def test_the_drafts_own_theta(spelling: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "syncless")
    shape = fitted(target_shape(rope_theta=777.0), **spelling)
    assert shape.layer.rope_theta == 1e6
    assert shape.layer.rope_scaling == {}
    assert "RoPE theta is 1e+06" in caplog.text


def test_theta_left_out_is_the_default_and_not_the_targets() -> None:
    assert fitted(target_shape(rope_theta=777.0), rope_theta=...).layer.rope_theta == 10000.0


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_scaled_rope_equals_transformers_at_position_8000(spelling: str) -> None:
    value = {**LLAMA3, "rope_theta": 500000.0} if spelling == "rope_parameters" else LLAMA3
    shape = fitted(rope_theta=500000.0, max_position_embeddings=16384, **{spelling: value})
    cos, sin = rope_tables(shape.layer, 8193, "cpu")
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=16384,
        rope_parameters={**LLAMA3, "rope_theta": 500000.0},
    )  # fmt: skip
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    at = torch.tensor([[0, 1, 4096, 8000, 8192]])
    their_cos, their_sin = rotary(torch.zeros(1), at)
    torch.testing.assert_close(cos[at[0]], their_cos[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(sin[at[0]], their_sin[0], atol=1e-6, rtol=0)
    plain = rope_tables(fitted(rope_theta=500000.0).layer, 8193, "cpu")[0]
    assert (cos[8000] - plain[8000]).abs().max() > 0.1, "the scaling would not be missed otherwise"


def test_ids_in_eagle_config_count_outputs() -> None:
    assert fitted(eagle_config={IDS: [0, 3, 7]}).aux_layers == (1, 4, 8)


def test_ids_at_the_top_level_count_inputs() -> None:
    assert fitted(eagle_config=..., **{IDS: [1, 4, 8]}).aux_layers == (1, 4, 8)


def test_both_may_say_the_same() -> None:
    assert fitted(eagle_config={IDS: [0, 3, 7]}, **{IDS: [1, 4, 8]}).aux_layers == (1, 4, 8)
    refused("different states", eagle_config={IDS: [0, 3, 7]}, **{IDS: [0, 3, 7]})


def test_the_usual_set_counted_as_inputs_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """Some heads write the inputs of layers 2, L / 2, L - 3 into eagle_config; taken as outputs they would be
    the wrong states."""
    assert fitted(eagle_config={IDS: list(USUAL)}).aux_layers == USUAL
    assert "[2, 6, 9]" in caplog.text


@pytest.mark.parametrize("eagle", [..., None, {}, {IDS: None}, {IDS: []}])
def test_guessed_layers_warn_and_are_named(eagle: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert fitted(target_shape(num_layers=30), eagle_config=eagle).aux_layers == (2, 15, 27)
    assert "outputs of layers 1, 14, 26" in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_named_layers_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    assert fitted().aux_layers == USUAL == usual_layers(12)
    assert caplog.text == ""


@pytest.mark.parametrize("num_layers", [3, 5])
def test_shallow_targets_are_not_guessed(num_layers: int) -> None:
    refused("cannot be guessed", target_shape(num_layers=num_layers), eagle_config=None)


def test_another_number_of_states_is_not_guessed() -> None:
    refused("2 of 12 layers cannot be guessed", eagle_config=None, num_aux_hidden_states=2)
    assert fitted(eagle_config={IDS: [2, 9]}, num_aux_hidden_states=2).states_width == 128


def test_without_aux_states_the_final_one_is_used(caplog: pytest.LogCaptureFixture) -> None:
    shape = fitted(eagle_config={"use_aux_hidden_state": False, IDS: [1, 5, 8]})
    assert (shape.aux_layers, shape.aux.count, shape.states_width) == ((), 0, 64)
    assert caplog.text == ""


def test_layers_past_the_targets_last() -> None:
    assert fitted(eagle_config={IDS: [1, 5, 11]}).aux_layers == (2, 6, 12)
    refused("output of layer 12, but toy has 12 layers", eagle_config={IDS: [1, 5, 12]})


@pytest.mark.parametrize("ids", [[5, 1, 8], [1, 1, 8]])
def test_ids_out_of_order(ids: list[int]) -> None:
    refused("ascending order", eagle_config={IDS: ids})


@pytest.mark.parametrize("ids", ["1,5,8", [1.0, 5, 8], [-1, 5, 8], [True, 5, 8], 5])
def test_ids_that_are_no_layers(ids: Any) -> None:
    refused("list of layer numbers", eagle_config={IDS: ids})


def test_count_and_ids_must_agree() -> None:
    refused("num_aux_hidden_states is 4, but .* names 3", num_aux_hidden_states=4)


def test_a_speculators_config_nests_the_layer(caplog: pytest.LogCaptureFixture) -> None:
    own = ("draft_vocab_size", "target_hidden_size", "eagle_config", "architectures")
    nested = {key: value for key, value in CONFIG.items() if key not in own}
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": 48,
        "rope_theta": None,
        IDS: [2, 6, 9],
        "transformer_layer_config": nested,
    }
    shape = fit_to(parse_shape(config, "config.json"), target_shape(), "toy", "config.json")
    assert (shape.layer, shape.aux_layers, shape.draft_vocab) == (fitted().layer, USUAL, 48)
    assert shape.norm_before_residual
    assert not parse_shape({**config, "norm_before_residual": False}, "c").norm_before_residual
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"fc_norm": True}, "fc_norm"),
        ({"use_aux_norm": True}, "fc_norm"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"norm_output": True}, "norm_output"),
        ({"bias": True}, "fc_bias"),
    ],
)
def test_switches(changes: dict[str, Any], field: str) -> None:
    assert getattr(parsed(**changes), field) is True
    assert getattr(parsed(), field) is False


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2ForCausalLM.*supported are"),
        ({"num_hidden_layers": 2}, "num_hidden_layers=2"),
        ({"logit_scale": 0.5}, "logit_scale=0.5"),
        ({"sliding_window": 128}, "sliding_window=128"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window"),
        ({"fc_norm": True, "norm_before_fc": True}, "fc_norm together with norm_before_fc"),
        ({"is_causal": False}, "is_causal"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling 'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"num_attention_heads": 5, "head_dim": 16}, "multiple of KV heads"),
        ({"head_dim": 15}, "even"),
        ({"draft_vocab_size": 97}, "draft_vocab_size 97 does not go with vocab_size 96"),
        ({"tie_word_embeddings": True}, "draft_vocab_size 48 does not go with vocab_size 96"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0"),
        ({"hidden_size": ...}, "hidden_size is None"),
        ({"vocab_size": "96"}, "vocab_size is '96'"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], match: str) -> None:
    refused(match, **changes)


def test_unused_windows_are_no_reason_to_refuse() -> None:
    assert parsed(sliding_window=128, use_sliding_window=False).layer == parsed(sliding_window=None).layer


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"target_hidden_size": 4096}, "another target: it expects hidden states of size 4096, not 64"),
        ({"vocab_size": 128}, "a vocabulary of 128, not 96 as toy has"),
        ({"target_hidden_size": None, "hidden_size": 32, "head_dim": 16}, "size 32, not 64"),
        ({"target_hidden_size": 32, "vocab_size": 128}, "size 32, not 64 and a vocabulary of 128, not 96"),
    ],
)
def test_drafts_of_other_targets(changes: dict[str, Any], match: str) -> None:
    refused(match, **changes)
