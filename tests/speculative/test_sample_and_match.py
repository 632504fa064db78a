"""Decoding loops over a toy target: losslessness, penalties and limits per position.

Tests are named after the field reports that they answer. Distributions: test_spec_law.py.
"""

from collections import Counter

import pytest
import torch
from toy_drafters import constant_chain, random_chain, random_tree, scripted_chain
from toy_target import Loop, plain, toy_logits

from engine.batch import DraftTree, Finish
from engine.params import SamplingParams, sample_key
from engine.sampling.asked import SamplingClass, SamplingRow
from speculative.accept import accept

VOCAB = 8
PROMPT = (1, 3)
TREE = (-1, 0, 0, 0, 1, 1, 2, 4)
SPARSE = (-1, 0, -2, 0, 1, -2, 3, 4)
DRAFTERS = {
    "plain": lambda: plain,
    "chain": lambda: random_chain(4, 1),
    "one-sided chain": lambda: constant_chain(4, 7),
    "tree": lambda: random_tree(TREE, 2),
    "tree with absent nodes": lambda: random_tree(SPARSE, 3),
}
REQUESTS = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
    "penalised greedy": {"repetition_penalty": 1.4, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    "penalised": {
        "temperature": 1.0,
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.7,
        "logit_bias": {2: 1.5, 6: -100},
    },
    "limits": {"temperature": 1.0, "min_tokens": 9, "max_tokens": 30, "stop_token_ids": [5]},
}


def loop_of(params: SamplingParams, count: int, **options) -> Loop:
    rows = [params.row(len(PROMPT), (0,), 0, seed, 60) for seed in range(count)]
    return Loop(toy_logits(VOCAB), PROMPT, rows, params.sampling_class(), **options)


def request(name: str) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": name != "limits", **REQUESTS[name]})


@pytest.mark.parametrize("drafter", ["chain", "tree", "tree with absent nodes"])
@pytest.mark.parametrize("name", REQUESTS)
def test_l1_p8_p11_output_is_the_same_with_and_without_drafts(name, drafter):
    without = loop_of(request(name), 40).run()
    loop = loop_of(request(name), 40)
    assert loop.run(DRAFTERS[drafter]()) == without
    assert sum(n.sum().item() for n in loop.accepted) > 0  # drafts did get accepted


@pytest.mark.parametrize("name", REQUESTS)
def test_drafts_that_are_always_right_save_steps(name):
    script = loop_of(request(name), 10).run()
    loop = loop_of(request(name), 10)
    assert loop.run(scripted_chain(4, script)) == script
    assert len(loop.accepted) == -(-max(len(row) for row in script) // 4)


def test_l11_drafts_that_are_always_wrong_cost_nothing_but_steps():
    script = loop_of(request("sampled"), 10).run()
    wrong = [[(token + 1) % VOCAB for token in row] for row in script]
    loop = loop_of(request("sampled"), 10)
    assert loop.run(scripted_chain(4, wrong)) == script
    assert all((n[loop.finish == Finish.NONE] == 0).all() for n in loop.accepted)
    assert {n.max().item() for n in loop.emitted} == {1}


def test_p4_temperature_has_an_effect_with_drafts():
    loop = Loop(
        torch.zeros(VOCAB, VOCAB, VOCAB),
        PROMPT,
        [SamplingRow(temperature=1.0, key=sample_key(seed, 0)) for seed in range(300)],
        SamplingClass(sampled=True),
    )
    loop.step(random_chain(4, 0))
    assert len(set(loop.tokens[:, 2].tolist())) >= 3


def eager_to_end() -> torch.Tensor:
    """A target that wants token 0 (its end) above all, everywhere."""
    table = toy_logits(VOCAB)
    table[:, :, 0] = 50.0
    return table


@pytest.mark.parametrize("minimum", [0, 1, 8, 20])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 4])
def test_p10_p14_min_tokens_count_tokens_not_steps(minimum, temperature, width):
    params = SamplingParams(temperature=temperature, min_tokens=minimum, max_tokens=40)
    rows = [params.row(len(PROMPT), (0,), 0, seed, 60) for seed in range(5)]
    cls = params.sampling_class()
    script = Loop(eager_to_end(), PROMPT, rows, cls).run()
    loop = Loop(eager_to_end(), PROMPT, rows, cls)
    got = loop.run(scripted_chain(width, script))
    assert [len(row) for row in got] == [minimum + 1] * 5  # the end comes with token minimum + 1
    assert [row[-1] for row in got] == [0] * 5
    assert loop.finish.tolist() == [Finish.STOP] * 5


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_p10_penalty_counts_are_the_histogram_of_the_output(drafter):
    params = SamplingParams(temperature=1.0, frequency_penalty=0.5, max_tokens=20, ignore_eos=True)
    loop = loop_of(params, 12)
    outputs = loop.run(DRAFTERS[drafter]())
    for row, output in enumerate(outputs, start=1):
        histogram = Counter(output)
        assert loop.columns.output_counts[row].tolist() == [histogram[t] for t in range(VOCAB)]


def test_p12_a_rejected_block_counts_its_one_token_only():
    params = SamplingParams(frequency_penalty=0.5, max_tokens=20, ignore_eos=True)
    script = loop_of(params, 3).run()
    loop = loop_of(params, 3)
    before = loop.columns.output_counts.clone()
    loop.step(scripted_chain(4, [[(t + 1) % VOCAB for t in row] for row in script]))
    change = (loop.columns.output_counts - before)[1:]
    assert change.sum(-1).tolist() == [1, 1, 1]
    assert [change[r, script[r][0]].item() for r in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_p15_a_seed_gives_the_same_output_alone_in_a_batch_and_later(drafter):
    row = request("sampled").row(len(PROMPT), (0,), 0, 42, 60)
    others = [request("sampled").row(len(PROMPT), (0,), 0, seed, 60) for seed in range(100, 115)]
    cls = SamplingClass(sampled=True)
    alone = Loop(toy_logits(VOCAB), PROMPT, [row], cls).run(DRAFTERS[drafter]())
    Loop(toy_logits(VOCAB), PROMPT, others, cls).run(DRAFTERS[drafter]())
    batch = Loop(toy_logits(VOCAB), PROMPT, [*others[:7], row, *others[7:]], cls).run(DRAFTERS[drafter]())
    assert batch[7] == alone[0]


def test_s5_samples_of_one_seeded_request_differ_and_repeat():
    params = SamplingParams(temperature=1.0, n=4, max_tokens=12, ignore_eos=True)
    rows = [params.row(len(PROMPT), (), index, 1, 60) for index in range(4)]
    runs = [
        Loop(toy_logits(VOCAB), PROMPT, rows, params.sampling_class()).run(random_chain(4, s)) for s in (1, 2)
    ]
    assert runs[0] == runs[1]
    assert len({tuple(output) for output in runs[0]}) == 4


def test_e4_known_length_after_an_end_inside_a_block():
    """Draft [end, x, y], all of which match: only the end is committed."""
    rows = [SamplingRow(stop_ids=(0,))]
    loop = Loop(eager_to_end(), PROMPT, rows, SamplingClass())
    loop.step(scripted_chain(4, [[0, 0, 0]]))
    assert loop.accepted[0].tolist() == [3]
    assert loop.known.tolist() == [len(PROMPT) + 1]
    assert loop.finish.tolist() == [Finish.STOP]


def test_e7_ignoring_the_end_goes_on_past_it():
    rows = [SamplingParams(max_tokens=6, ignore_eos=True).row(len(PROMPT), (0,), 0, 0, 60)]
    loop = Loop(eager_to_end(), PROMPT, rows, SamplingClass())
    assert loop.run(scripted_chain(4, [[0] * 6])) == [[0] * 6]
    assert loop.finish.tolist() == [Finish.LENGTH]


def test_accepting_follows_the_first_of_equal_siblings():
    tokens = torch.tensor([[4, 5, 5, 6]]).int()
    tree = DraftTree(tokens, torch.tensor([[-1, 0, 0, 2]]).int())
    got = accept(tree, torch.tensor([[5, 7, 6, 1]]).int())
    assert got.accept_index.tolist() == [[0, 1, -1, -1]]
    assert got.emitted[0, :2].tolist() == [5, 7]
