"""The draft's KV and kept state follow from the target's true states, after every chunk and verify."""

from __future__ import annotations

from pathlib import Path

import pytest
from eagle3_cases import CONFIG, tensors_of, write
from support.eagle3 import CHAIN, PROMPTS, TREE, Audit, bigrams, engine, teach
from support.engines import TINY, answers, run

from engine.params import SamplingParams

SHORT = SamplingParams(max_tokens=10, ignore_eos=True)
KINDS = {"chain": CHAIN, "tree": TREE}


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [16, 512])
def test_kv_after_every_chunk_and_verify(kind: str, page: int, chunk: int) -> None:
    """Q4, and equality at chunk boundaries: what was drafted is overwritten by what the target really saw."""
    prompts = PROMPTS[1:4]
    table = bigrams(prompts, SHORT)
    sizes = (f"cache.page_size={page}", f"scheduler.chunk_tokens={chunk}")
    with engine(*KINDS[kind], *sizes) as llm:
        teach(llm, table)
        audit = Audit(llm)
        found = answers(llm.generate(prompts, SHORT))
        llm.check()
    assert found == run(prompts, SHORT, *TINY, "overlap=none")
    assert audit.checked > 10
    assert max(audit.accepted) >= 2, "the taught draft had several drafts accepted at once"
    assert min(audit.accepted) == 0


@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_a_draft_of_the_final_state_alone(tmp_path: Path, adaptive: str) -> None:
    """Q3: use_aux_hidden_state=false: nothing is collected, the draft reads the final normalised state."""
    config = {**CONFIG, "vocab_size": 512, "eagle_config": {"use_aux_hidden_state": False}}
    tensors = tensors_of(config)
    tensors["fc.weight"] = tensors["fc.weight"][:, :64]
    folder = write(tmp_path / "draft", config, tensors)
    prompts = PROMPTS[1:4]
    overrides = ("spec=eagle3", f"spec.draft={folder}", f"spec.adaptive={adaptive}")
    with engine(*overrides, parts={"costs": None}) as llm:
        assert llm._container.model().aux_layers == ()
        teach(llm, bigrams(prompts, SHORT))
        audit = Audit(llm)
        found = answers(llm.generate(prompts, SHORT))
    assert found == run(prompts, SHORT, *TINY, "overlap=none")
    assert max(audit.accepted) >= 2
