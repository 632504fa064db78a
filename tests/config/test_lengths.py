"""needs_cpu_seq_lens comes from the injected instances and from nothing else."""

from __future__ import annotations

from types import SimpleNamespace as Part

import pytest

from engine.batch import HostLens
from engine.lengths import needs_cpu_seq_lens

QUIET = Part(reads_cpu_seq_lens=False)
READER = Part(reads_cpu_seq_lens=True)
SILENT = Part()
NONE, BOUND, EXACT = (Part(host_lens=value) for value in (HostLens.NONE, HostLens.BOUND, HostLens.EXACT))


class Composite:
    """Computes its own flag from its children, as TBO and hybrid do."""

    def __init__(self, *children):
        self._children = children

    @property
    def host_lens(self):
        order = [HostLens.NONE, HostLens.BOUND, HostLens.EXACT]
        return max((getattr(c, "host_lens", HostLens.EXACT) for c in self._children), key=order.index)


@pytest.mark.parametrize(
    ("speculator", "backends", "needed", "causes"),
    [
        (QUIET, {"target": NONE}, False, 0),
        (QUIET, {"target": BOUND}, False, 0),
        (QUIET, {"target": EXACT}, True, 1),
        (QUIET, {"target": SILENT}, True, 1),  # undeclared counts as reading
        (READER, {"target": NONE}, True, 1),
        (SILENT, {"target": NONE}, True, 1),
        (QUIET, {"target": NONE, "draft": None, "draft_extend": None}, False, 0),  # no such forward
        (QUIET, {"target": NONE, "draft": BOUND, "draft_extend": EXACT}, True, 1),
        (READER, {"target": EXACT, "draft": EXACT, "draft_extend": None}, True, 3),
        (QUIET, {"target": Composite(NONE, BOUND)}, False, 0),
        (QUIET, {"target": Composite(NONE, EXACT)}, True, 1),
        (QUIET, {"target": Composite(NONE, SILENT)}, True, 1),
        (QUIET, {"target": Part(host_lens=True)}, True, 1),  # a declaration that is no HostLens is none
        (Part(reads_cpu_seq_lens=0), {"target": NONE}, True, 1),  # only False opts out
        (QUIET, {}, False, 0),
    ],
)
def test_who_needs_host_lengths(speculator, backends, needed, causes):
    answer, caused_by = needs_cpu_seq_lens(speculator, backends.items())
    assert answer is needed
    assert len(caused_by) == causes


def test_causes_name_role_and_class():
    caused_by = needs_cpu_seq_lens(READER, [("draft", EXACT)])[1]
    assert caused_by == ("speculator (SimpleNamespace)", "draft attention (SimpleNamespace)")
