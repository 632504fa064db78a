"""Where drafting ends or pauses: the draft's last position, narrower widths, pauses, stops inside a run."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from eagle3_cases import CONFIG, tensors_of, write
from support.eagle3 import CHAIN, PROMPTS, TREE, Audit, Script, bigrams, engine, teach
from support.engines import TINY, answers, run

from engine.params import SamplingParams
from speculative.width import WidthChoice

KINDS = {"chain": CHAIN, "tree": TREE}
LAST = 48  # position that the short draft was made for
OWN = {"vocab_size": 512, "draft_vocab_size": 256, "max_position_embeddings": LAST}
AUX = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}


@pytest.fixture
def short_draft(tmp_path: Path) -> tuple[str, ...]:
    """A checkpoint for model=tiny whose positions end early."""
    config = {**CONFIG, **OWN, **AUX}
    return (
        "spec=eagle3",
        "spec.adaptive=false",
        f"spec.draft={write(tmp_path / 'draft', config, tensors_of(config))}",
    )


@pytest.mark.parametrize("tree", [(), TREE[2:]])
def test_past_the_drafts_positions_a_request_goes_on_without_drafts(
    short_draft: tuple[str, ...], tree: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """C9, Q12: text as ever, the rest of the batch drafts on, later requests too; counted once a request."""
    short = SamplingParams(max_tokens=9, ignore_eos=True)
    long = [SamplingParams(max_tokens=70, ignore_eos=True)] * 2 + [short]
    prompts = [*PROMPTS[:2], [9, 8, 7, 6]]
    plain = run(prompts, long, *TINY, "overlap=none")
    table = bigrams(prompts, long[0])
    with engine(*short_draft, *tree) as llm, caplog.at_level(logging.WARNING, logger="syncless"):
        teach(llm, table)
        before = llm.generate(PROMPTS, short)
        first = llm.metrics.snapshot()
        assert answers(llm.generate(prompts, long)) == plain
        counts = llm.metrics.snapshot()
        llm.forget_prefixes()
        assert answers(llm.generate(PROMPTS, short)) == answers(before)
        after = llm.metrics.snapshot()
    steps = counts["decode_results"] - first["decode_results"]
    width = 5 if not tree else 9
    drafted = counts["drafted_tokens"] - first["drafted_tokens"]
    assert counts["draft_too_long"] - first["draft_too_long"] == 2
    assert 0 < drafted < (width - 1) * steps, "some steps had no drafts, others had"
    assert sum(f"position {LAST}" in message for message in caplog.messages) == 1

    def accept_length(of: dict[str, float], base: dict[str, float]) -> float:
        return (of["decode_tokens"] - base["decode_tokens"]) / (of["decode_results"] - base["decode_results"])

    nothing = dict.fromkeys(first, 0)
    assert accept_length(after, counts) == pytest.approx(accept_length(first, nothing))


@pytest.mark.parametrize("loop", ["none", "future"])
@pytest.mark.parametrize("kind", KINDS)
def test_narrower_steps_draft_less_and_keep_the_draft_whole(kind: str, loop: str) -> None:
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    widest = 5 if kind == "chain" else 9
    policy = Script([WidthChoice(w) for w in (widest, 2, 3, 1, widest - 1)])
    with engine(*KINDS[kind], f"overlap={loop}", parts={"widths": policy}) as llm:
        teach(llm, bigrams(PROMPTS[:3], params))
        audit = Audit(llm)
        found = answers(llm.generate(PROMPTS[:3], params))
    assert found == run(PROMPTS[:3], params, *TINY, "overlap=none")
    assert max(audit.accepted) > 0
    assert {(w, w - 1) for w in (2, 3, widest - 1, widest)} <= set(policy.drafted)


def pauses(plain: int, *, keep: int | None = None) -> list[WidthChoice]:
    """Three steps with drafts, `plain` without (every `keep`-th of them catching up), and back."""
    away = [WidthChoice(1, resume=bool(keep) and i % keep == keep - 1) for i in range(plain)]
    return [*[WidthChoice(5)] * 3, *away, WidthChoice(5, resume=True), *[WidthChoice(5)] * 40]


@pytest.mark.parametrize(
    ("choices", "comes_back"),
    [(pauses(7), True), (pauses(64), True), (pauses(65), False), (pauses(130, keep=60), True)],
    ids=["short", "longest", "too long", "kept warm"],
)
@pytest.mark.parametrize("page", [1, 16])
def test_pauses(choices: list[WidthChoice], comes_back: bool, page: int) -> None:
    """After a pause the draft's KV and kept state are those of a draft that never paused; past 64 positions
    the request gets no drafts any more."""
    params = SamplingParams(max_tokens=len(choices) - 12, ignore_eos=True)
    prompts = PROMPTS[1:3]
    policy = Script(choices)
    parts = {"widths": policy, "costs": None}
    with engine(*CHAIN, "spec.adaptive=true", f"cache.page_size={page}", "overlap=none", parts=parts) as llm:
        audit = Audit(llm, whole=comes_back)
        found = answers(llm.generate(prompts, params))
    assert found == run(prompts, params, *TINY, "overlap=none")
    back = [i for i, (width, _) in enumerate(policy.drafted) if width == 1][-1] + 1
    drafted = {count for width, count in policy.drafted[back:]}
    assert drafted == ({4} if comes_back else {0})
    assert audit.checked > 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_id_at_every_index_of_an_accepted_run(kind: str) -> None:
    """E2, E4, E6: every token of a greedy run is declared the stop in turn, and every length tried."""
    free = SamplingParams(max_tokens=12, ignore_eos=True)
    prompt = PROMPTS[2]
    [(ids, _, _)] = run([prompt], free, *TINY, "overlap=none")
    table = bigrams([prompt], free)
    cases = [SamplingParams(max_tokens=12, ignore_eos=True, stop_token_ids=(token,)) for token in ids[:8]]
    cases += [SamplingParams(max_tokens=n, ignore_eos=True) for n in range(1, 9)]
    plain = run([prompt] * len(cases), cases, *TINY, "overlap=none")
    with engine(*KINDS[kind]) as llm:
        teach(llm, table)
        found = answers(llm.generate([prompt] * len(cases), cases))
        counts = llm.metrics.snapshot()
    assert found == plain
    assert counts["emitted_tokens"] == sum(len(ids) for ids, _, _ in plain)
