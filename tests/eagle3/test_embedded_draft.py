"""The draft in the box, on the model in the box: found without being named, as good as its card says, and it
changes no answer."""

from __future__ import annotations

import pytest
from support.engines import answers

from engine.llm import LLM
from engine.params import SamplingParams

QUESTIONS = (
    "Tom has 12 apples. He gives 5 to Ann and buys 8 more. How many apples does he have now?",
    "A train drives 60 miles an hour for 3 hours. How many miles does it drive?",
    "Write a Python function that returns the largest number of a list.",
    "What are the three states of matter? Describe each of them in a sentence.",
)
PARAMS = SamplingParams(max_tokens=48)
BASE = ("model.dtype=float32", "threads=1", "scheduler.max_running=4")


@pytest.mark.model
def test_it_is_used_by_default_and_is_as_good_as_its_card() -> None:
    """2.6 tokens a step on its weakest data set; far less would be a draft that reads other layers, or
    another chat template."""
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
    with LLM(*BASE) as llm:
        prompts = [llm.tokenizer.encode_chat(chat) for chat in chats]
        plain = answers(llm.generate(prompts, PARAMS))
    with LLM(*BASE, "spec=eagle3", "spec.adaptive=false") as llm:
        found = answers(llm.generate(prompts, PARAMS))
        counts = llm.metrics.snapshot()
        llm.check()
    assert found == plain
    steps = counts["decode_tokens"] - counts["accepted_drafts"]
    assert counts["decode_tokens"] / steps > 2.2
