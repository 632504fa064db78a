"""The sampler's choice: greedy rows, penalties and biases, masks, and what is left as it was."""

import numpy as np
import pytest
import torch
from sampler_cases import EVERYTHING, OUTPUT, PROMPT, draw, seeded, table
from support.sampling_reference import shaped_logits

from engine.params import SamplingParams
from engine.sampling.asked import SamplingClass, SamplingRow
from engine.sampling.sampler import Sampler


@pytest.mark.parametrize("cls", [SamplingClass(), SamplingClass(True), EVERYTHING], ids=str)
def test_greedy_rows_take_the_largest_logit_in_any_class(cls):
    torch.manual_seed(0)
    logits = torch.randn(6, 512)
    logits[2, 100] = logits[2, 7] = 50.0
    got = draw([SamplingRow()] * 6, logits, 3, cls)
    assert got.tokens.tolist() == [row.tolist().index(max(row.tolist())) for row in logits]
    assert got.tokens.dtype == torch.int32
    assert got.logprobs is None


def test_top_k_one_and_a_tiny_temperature_are_greedy():
    torch.manual_seed(0)
    logits = torch.randn(50, 300) * 30
    best = logits.argmax(-1).tolist()
    for params in (
        SamplingParams(temperature=1e-38),
        SamplingParams(temperature=1, top_k=1),
        SamplingParams(temperature=1e-30),
        SamplingParams(temperature=5e-324),
        SamplingParams(temperature=1, top_p=1e-9),
        SamplingParams(temperature=1, min_p=1),
    ):
        assert draw(seeded(params, 50), logits, 5).tokens.tolist() == best


def test_penalties_leave_tokens_that_the_model_excludes_excluded():
    logits = torch.tensor([[-torch.inf, -0.5, -torch.inf, -torch.inf]])
    for penalty in (0.5, 2.0):
        row = SamplingParams(repetition_penalty=penalty, frequency_penalty=2.0).row(4, (), 0, 0, 100)
        assert draw([row], logits, 7, prompt=(0, 1), output=(1, 2)).tokens.item() == 1


def test_penalties_and_bias_apply_to_greedy_rows():
    rng = np.random.default_rng(0)
    params = SamplingParams(
        repetition_penalty=1.7, frequency_penalty=0.5, presence_penalty=0.5, logit_bias={4: 2.0}
    )
    row = params.row(4, (), 0, 0, 100)
    logits = rng.normal(size=(200, 8))
    got = draw([row] * 200, torch.tensor(logits).float(), 7, prompt=PROMPT, output=OUTPUT)
    expected = [int(shaped_logits(own, row, PROMPT, OUTPUT, 7).argmax()) for own in logits]
    assert got.tokens.tolist() == expected
    assert expected != logits.argmax(-1).tolist()


def test_repetition_penalty_equals_the_processor_of_transformers():
    hf = pytest.importorskip("transformers.generation.logits_process")
    torch.manual_seed(0)
    logits = torch.randn(300, 8)
    row = SamplingParams(repetition_penalty=1.8).row(4, (), 0, 0, 100)
    got = draw([row] * 300, logits, 7, prompt=PROMPT, output=OUTPUT)
    known = torch.tensor([[*PROMPT, *OUTPUT]]).repeat(300, 1)
    expected = hf.RepetitionPenaltyLogitsProcessor(1.8)(known, logits.clone())
    assert got.tokens.tolist() == expected.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_ids_are_masked_until_min_len(temperature):
    row = SamplingRow(temperature=temperature, stop_ids=(1, 3), min_len=10, key=5)
    logits = torch.tensor([0.0, 90.0, 1.0, 80.0])
    for position in range(8, 13):
        token = draw([row], logits, position).tokens.item()
        assert (token in (1, 3)) == (position >= 10)


def test_masking_the_whole_vocabulary_still_answers():
    row = SamplingRow(temperature=1.0, stop_ids=(0, 1), min_len=10)
    assert draw([row], torch.zeros(2), 5).tokens.item() in (0, 1)


@pytest.mark.parametrize("params", [{"min_p": 0.9}, {}, {"top_p": 0.999}], ids=str)
def test_p8_a_banned_token_is_never_drawn(params):
    rows = seeded(SamplingParams(temperature=1.0, logit_bias={2: -100}, **params), 5000)
    tokens = draw(rows, torch.tensor([0.0, 0.1, 3.0, 0.05]), 9).tokens
    assert 2 not in tokens.tolist()
    assert len(set(tokens.tolist())) == 3


def test_p11_drafted_tokens_on_the_path_count_as_output():
    rng = np.random.default_rng(1)
    params = SamplingParams(repetition_penalty=1.6, frequency_penalty=0.6, presence_penalty=0.4)
    row = params.row(4, (), 0, 0, 100)
    columns = table([row], 8, PROMPT, OUTPUT)
    before = columns.output_counts.clone()
    paths = [[], [1], [1, 1], [1, 6, 1], [0, 4, 4]] * 40
    ancestors = torch.tensor([p + [-1] * (4 - len(p)) for p in paths]).int()
    logits = rng.normal(size=(len(paths), 8))
    got = Sampler()(
        torch.tensor(logits).float(),
        torch.ones(len(paths), dtype=torch.int64),
        torch.tensor([7 + len(p) for p in paths]),
        columns,
        SamplingClass(shaped=True),
        ancestors,
    )
    expected = [
        int(shaped_logits(own, row, PROMPT, [*OUTPUT, *p], 7 + len(p)).argmax())
        for own, p in zip(logits, paths, strict=True)
    ]
    assert got.tokens.tolist() == expected
    assert torch.equal(columns.output_counts, before)  # P12: drafting records nothing


@pytest.mark.parametrize("vocab", [30, 512])
@pytest.mark.parametrize("cls", [SamplingClass(), SamplingClass(True, True, True, 3)], ids=str)
def test_no_rows_are_no_tokens(cls, vocab):
    none = torch.empty(0, dtype=torch.int64)
    got = Sampler()(torch.empty(0, vocab), none, none, table([SamplingRow()], vocab), cls)
    assert got.tokens.shape == (0,)
    assert got.logprobs is None or got.logprobs.shape == (0,)


def test_the_logits_given_are_left_unchanged():
    logits = torch.randn(3, 64)
    copy = logits.clone()
    rows = seeded(SamplingParams(temperature=1.0, top_k=4, logit_bias={1: 2.0}), 3)
    draw(rows, logits, 5)
    assert torch.equal(logits, copy)


@pytest.mark.parametrize(
    "cls",
    [SamplingClass(), SamplingClass(top_logprobs=2), SamplingClass(sampled=True), EVERYTHING],
    ids=["greedy", "logprobs", "sampled", "everything"],
)
def test_logits_of_less_precision_give_what_they_give_in_fp32(cls):
    """To the bit: they are cast before anything is computed with them."""
    logits = (torch.randn(6, 512, generator=torch.Generator().manual_seed(3)) * 4).bfloat16()
    rows = seeded(SamplingParams(temperature=0.9, top_p=0.9, logit_bias={1: 2.0}), 6)
    found, expected = (draw(rows, given, 5, cls) for given in (logits, logits.float()))
    for name, value in vars(expected).items():
        other = getattr(found, name)
        assert value is None or (other.dtype == value.dtype and torch.equal(other, value)), name
    columns, at = table(rows, 512), torch.arange(1, 7)
    one, two = (
        Sampler().probabilities(given, at, torch.full((6,), 5), columns, cls)
        for given in (logits, logits.float())
    )
    assert one.dtype == torch.float32
    assert torch.equal(one, two)
