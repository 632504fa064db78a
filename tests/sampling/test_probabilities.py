"""The distribution that a node's token is drawn from, as the ratio test reads it, against plain float64."""

import numpy as np
import pytest
import torch
from support.sampling_reference import distribution, shaped_logits

from engine.sampling.asked import SamplingClass, SamplingRow
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.sampling.sampler import Sampler


@pytest.mark.parametrize("seed", range(4))
def test_probabilities_are_those_of_the_reference(seed):
    """Rows of every kind in one batch; a greedy one has a single 1."""
    rng = np.random.default_rng(seed)
    rows = [
        SamplingRow(temperature=0.7),
        SamplingRow(temperature=1.3, top_k=4),
        SamplingRow(temperature=1.0, top_p=0.8, min_p=0.05),
        SamplingRow(temperature=0.9, frequency_penalty=0.6, repetition_penalty=1.4, bias=((2, 1.5),)),
        SamplingRow(temperature=1.0, min_len=9, stop_ids=(1, 3)),
        SamplingRow(temperature=0.0, presence_penalty=1.0),
    ]
    prompt, output = (4, 7, 7), (2, 5, 5)
    columns = SamplingColumns(len(rows) + 1, 11, torch.device("cpu"), penalties=True)
    at = torch.arange(1, len(rows) + 1)
    columns.unpack_into(torch.from_numpy(pack_rows(rows)), at)
    tokens = torch.tensor([[0] * 6, *[[*prompt, *output]] * len(rows)]).int()
    known = torch.full((len(rows),), 3).int()
    columns.count_known(at, tokens, known, known + 1)  # one output is committed, two are drafted
    ancestors = torch.tensor([output[1:]] * len(rows)).int()
    logits = torch.from_numpy(rng.normal(size=(len(rows), 11)) * 2).float()
    cls = SamplingClass(sampled=True, filters=True, shaped=True)
    got = Sampler().probabilities(logits, at, torch.full((len(rows),), 6), columns, cls, ancestors)
    for found, row, values in zip(got.numpy(), rows, logits.numpy(), strict=True):
        if row.temperature == 0:
            best = shaped_logits(values, row, prompt, output, 6).argmax()
            assert found.tolist() == np.eye(11)[best].tolist()
        else:
            assert np.abs(found - distribution(values, row, prompt, output)).max() < 1e-6
