"""Columns, seeded rows and draws of the sampler: what its tests share."""

import torch

from engine.params import SamplingParams
from engine.sampling.asked import SamplingClass, SamplingRow
from engine.sampling.columns import SamplingColumns, pack_rows
from engine.sampling.sampler import Sampler

CPU = torch.device("cpu")
EVERYTHING = SamplingClass(sampled=True, filters=True, shaped=True)
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


def draw(rows: list[SamplingRow], logits: torch.Tensor, position: int, cls=EVERYTHING, **known):
    columns = table(rows, logits.shape[-1], **known)
    n = len(rows)
    batch = logits.expand(n, -1) if logits.ndim == 1 else logits
    return Sampler()(batch.contiguous(), torch.arange(1, n + 1), torch.full((n,), position), columns, cls)
