"""Logprobs of the sampler: unfiltered, finite, ranked, and only as many as were asked for."""

import json

import pytest
import torch
from sampler_cases import draw, seeded

from engine.params import SamplingParams
from engine.sampling.asked import SamplingClass, SamplingRow
from engine.sampling.sampler import LOGPROB_FLOOR


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
