"""A request of which only some samples fit into the queue: refused whole, and nothing of it lives on."""

from __future__ import annotations

import pytest
from support.engines import TINY, make

from engine.errors import UserError
from engine.params import SamplingParams


def test_an_id_that_was_refused_serves_the_next_request() -> None:
    """The cancelled sample's news used to end whoever took the same id next."""
    limits = ("scheduler.max_waiting=1", "cache.max_context=64", "sampling.max_tokens=8")
    with make(*TINY, *limits) as llm:
        with pytest.raises(UserError, match="max_waiting"):
            llm.add([1, 2, 3], SamplingParams(max_tokens=3, n=2, ignore_eos=True), request_id="a")
        assert not llm.has_work()
        llm.add([1, 2, 3], SamplingParams(max_tokens=3, ignore_eos=True), request_id="a")
        while llm.has_work():
            llm.step()
        output = llm.output("a")
        assert output is not None
        assert len(output.completions[0].token_ids) == 3
        llm.check()
