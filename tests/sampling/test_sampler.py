"""The sampler against exact distributions, and what users of other engines reported (by report id)."""

import json

import numpy as np
import pytest
import torch
from support.sampling_reference import chi_square_p, distribution, shaped_logits

from engine.batch import SamplingClass, SamplingRow
from engine.params import SamplingParams, sample_key
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.sampling.sampler import LOGPROB_FLOOR, Sampler

CPU = torch.device("cpu")
EVERYTHING = SamplingClass(sampled=True, filters=True, shaped=True)
DRAWS = 20000
KEYS = torch.tensor([sample_key(seed, 0) - (1 << 63) for seed in range(DRAWS)])  # any 64 bits will do
PROMPT, OUTPUT = (2, 2, 5, 7), (3, 3, 5)


def table(rows: list[SamplingRow], vocab: int, prompt=(), output=()) -> SamplingColumns:
    """Columns whose rows 1.. hold `rows`, each with the same prompt and output counted."""
    got = SamplingColumns(len(rows) + 1, vocab, CPU, penalties=True)
    at = torch.arange(1, len(rows) + 1)
    got.unpack_into(torch.from_numpy(pack_rows(rows)), at)
    if prompt or output:
        known = torch.tensor([*prompt, *output], dtype=torch.int32).repeat(len(rows) + 1, 1)
        lens = torch.full((len(rows),), len(prompt), dtype=torch.int32)
        got.count_known(at, known, lens, lens + len(output))
    return got


def seeded(params: SamplingParams, count: int, **overrides) -> list[SamplingRow]:
    return [params.row(4, (), 0, seed, 10**6, **overrides) for seed in range(count)]


def draw_many(params: SamplingParams, logits: torch.Tensor, prompt=(), output=()) -> np.ndarray:
    """Counts of DRAWS tokens, each with the key of another seed."""
    row = params.row(len(PROMPT), (), 0, 0, 10**6)
    columns = SamplingColumns(DRAWS + 1, len(logits), CPU, penalties=True)
    rows = torch.arange(1, DRAWS + 1)
    one = table([row], len(logits), prompt, output)
    for name, column in vars(columns).items():
        if isinstance(column, torch.Tensor):
            column[1:] = getattr(one, name)[1]
    columns.key[1:] = KEYS
    position = torch.full((DRAWS,), len(prompt) + len(output))
    got = Sampler()(logits.repeat(DRAWS, 1), rows, position, columns, params.sampling_class())
    return np.bincount(got.tokens.numpy(), minlength=len(logits)).astype(float)


def draw(rows: list[SamplingRow], logits: torch.Tensor, position: int, cls=EVERYTHING, **known):
    columns = table(rows, logits.shape[-1], **known)
    n = len(rows)
    batch = logits.expand(n, -1) if logits.ndim == 1 else logits
    return Sampler()(batch.contiguous(), torch.arange(1, n + 1), torch.full((n,), position), columns, cls)


COMBINATIONS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 5.0},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.2, "top_p": 0.6},
    "min_p": {"temperature": 1.5, "min_p": 0.15},
    "all filters": {"temperature": 1.5, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    "bias": {"temperature": 1.0, "logit_bias": {0: 2.5, 5: -3.0}},
    "penalties": {
        "temperature": 1.0,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
    },
    "negative penalties": {"temperature": 1.0, "repetition_penalty": 0.8, "frequency_penalty": -0.5},
    "everything": {
        "temperature": 1.3,
        "top_k": 6,
        "top_p": 0.95,
        "min_p": 0.01,
        "logit_bias": {3: 1.0},
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.1,
        "min_tokens": 20,
        "stop_token_ids": [1],
    },
}


@pytest.mark.parametrize("vocab", [8, 64])
@pytest.mark.parametrize("name", COMBINATIONS)
def test_draws_follow_the_exact_distribution(name, vocab):
    torch.manual_seed(vocab)
    logits = torch.randn(vocab) * 1.5
    params = SamplingParams(**COMBINATIONS[name])
    counts = draw_many(params, logits, PROMPT, OUTPUT)
    expected = distribution(logits.numpy(), params.row(4, (), 0, 0, 10**6), PROMPT, OUTPUT)
    assert chi_square_p(counts, expected) > 1e-3


def test_the_chi_square_has_power():
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])
    counts = draw_many(SamplingParams(temperature=1.0), logits)
    wrong = SamplingParams(temperature=1.05).row(4, (), 0, 0, 100)
    assert chi_square_p(counts, distribution(logits.numpy(), wrong)) < 1e-4


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


@pytest.mark.parametrize("vocab", [64, 501])
def test_p15_p16_a_request_draws_the_same_alone_and_in_a_batch(vocab):
    torch.manual_seed(3)
    kinds = [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9},
        {},
        {"temperature": 1.5, "top_k": 10, "min_p": 0.01},
    ]
    rows = [SamplingParams(**kinds[i % 4]).row(4, (), 0, 42 + i, 1000) for i in range(16)]
    logits = torch.randn(16, vocab)
    position = torch.arange(16) + 5
    columns = table(rows, vocab)
    order = torch.randperm(16)
    batch = Sampler()(logits[order], order + 1, position[order], columns, EVERYTHING).tokens
    for place, i in enumerate(order.tolist()):
        own = SamplingParams(**kinds[i % 4]).sampling_class()
        alone = Sampler()(logits[i : i + 1], torch.tensor([i + 1]), position[i : i + 1], columns, own)
        assert alone.tokens.item() == batch[place].item()


def test_p16_fresh_seeds_give_distinct_outputs():
    rows = [SamplingParams(temperature=1.0).row(4, (), 0, seed, 1000) for seed in range(20)]
    streams = {tuple(draw([r], torch.zeros(32), p).tokens.item() for p in range(4, 8)) for r in rows}
    assert len(streams) >= 15


def test_s5_samples_of_one_seed_are_distinct_and_reproducible():
    def streams() -> list[tuple[int, ...]]:
        rows = [SamplingParams(temperature=1.0, n=4).row(4, (), i, 1, 1000) for i in range(4)]
        steps = [draw(rows, torch.zeros(50), position).tokens.tolist() for position in range(4, 12)]
        return list(zip(*steps, strict=True))

    first = streams()
    assert len(set(first)) == 4
    assert first == streams()


def test_p4_temperature_has_an_effect():
    rows = seeded(SamplingParams(temperature=1.0), 300)
    assert len(set(draw(rows, torch.zeros(16), 4).tokens.tolist())) >= 3


def test_p2_p3_logprobs_are_unfiltered_finite_and_ranked():
    torch.manual_seed(0)
    logits = torch.randn(40, 200) * 4
    logits[:, 150:] = -torch.inf  # a vocabulary padded by the model
    params = SamplingParams(temperature=1.0, top_p=0.3, logit_bias={1: 5.0}, logprobs=5)
    got = draw(seeded(params, 40), logits, 6, params.sampling_class())
    expected = logits.log_softmax(-1)
    own = expected.gather(1, got.tokens.long().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(got.logprobs, own, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.top_logprobs, expected.topk(5).values, rtol=1e-5, atol=1e-5)
    assert torch.equal(got.top_ids.long(), expected.topk(5).indices)
    assert (got.top_logprobs.diff(dim=-1) <= 0).all()
    assert (got.logprobs < 0).all()
    json.loads(json.dumps(got.top_logprobs.tolist(), allow_nan=False))


def test_logprobs_of_impossible_tokens_are_floored():
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    got = draw([SamplingRow()], logits, 4, SamplingClass(top_logprobs=3))
    assert got.top_logprobs.tolist() == [[0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]]


@pytest.mark.parametrize(("best", "width"), [(-1, None), (0, None), (1, 1), (20, 20), (50, 30)])
def test_logprob_shapes(best, width):
    got = draw([SamplingRow()] * 3, torch.randn(3, 30), 4, SamplingClass(top_logprobs=best))
    assert (got.logprobs is None) == (best < 0)
    assert (got.top_ids is None) == (width is None)
    if width is not None:
        assert got.top_ids.shape == got.top_logprobs.shape == (3, width)


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
