"""What a request draws depends on its seed and position, not on who else is in the batch."""

import pytest
import torch
from sampler_cases import EVERYTHING, draw, seeded, table

from engine.params import SamplingParams
from engine.sampling.sampler import Sampler


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
    found = {}
    for temperature in (0.0, 1.0):
        rows = seeded(SamplingParams(temperature=temperature), 300)
        found[temperature] = set(draw(rows, torch.zeros(16), 4).tokens.tolist())
    assert len(found[0.0]) == 1
    assert len(found[1.0]) >= 3
