"""`spec=ngram` as a part: its values, its plan, its trees, and what it tells the host."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch
from test_history import view_of

from engine import rules
from engine.batch import ABSENT, ROOT
from engine.compose import compose
from engine.errors import UserError
from speculative.base import DraftHost
from speculative.ngram.backoff import NgramWidth
from speculative.ngram.drafter import Ngram
from speculative.ngram.signal import FIRST, STREAK, Signal, unpack_signal
from speculative.views import Observed
from speculative.width import FixedWidth


def host() -> DraftHost:
    return DraftHost(torch.device("cpu"), 9, 200, 1, 50, "torch", lambda text: list(text.encode()))


def drafter(**options) -> Ngram:
    return Ngram(Ngram.Config(**options), host())


def view(texts, width):
    made = view_of(texts, width=width)
    relay = {name: torch.zeros(made.tokens.shape[0], dtype=torch.int32) for name in (FIRST, STREAK)}
    return dataclasses.replace(made, relay=relay)


def told(tree) -> list[Signal]:
    assert tree.signal.dtype == torch.int32
    return [unpack_signal(value) for value in tree.signal.tolist()]


def test_a_chain():
    tree = drafter(drafts=3).propose(view([[1, 2, 3, 1, 2], [4, 5, 6], []], 4))
    assert tree.tokens.tolist() == [[2, 3, 1, 2], [6, 0, 0, 0], [0, 0, 0, 0]]
    assert tree.parent.tolist() == [[ROOT, 0, 1, 2], [ROOT, *[ABSENT] * 3], [ROOT, *[ABSENT] * 3]]
    assert told(tree) == [Signal(2, 0), Signal(0, 0), Signal(0, 0)]
    assert tree.tokens.dtype == tree.parent.dtype == torch.int32


TEXT = [1, 2, 9, 8, 1, 2, 7, 1, 2]


def test_a_tree_has_no_duplicate_siblings_and_the_best_branch_first():
    tree = drafter(drafts=2, branches=3).propose(view([TEXT], 7))
    assert tree.tokens.tolist() == [[2, 7, 1, 9, 8, 0, 0]]
    assert tree.parent.tolist() == [[ROOT, 0, 1, 0, 3, ABSENT, ABSENT]]


@pytest.mark.parametrize("width", range(1, 8))
def test_a_narrow_step_keeps_the_best_chain(width):
    one = drafter(drafts=2, branches=3)
    whole, narrow = one.propose(view([TEXT], 7)), one.propose(view([TEXT], width))
    assert narrow.tokens.tolist() == [whole.tokens[0, :width].tolist()]
    assert narrow.parent.tolist() == [whole.parent[0, :width].tolist()]
    assert told(narrow) == told(whole)


def seen(tree, emitted) -> Observed:
    rows = torch.zeros_like(tree.tokens)
    rows[:, 0] = torch.tensor(emitted, dtype=torch.int32)
    return Observed(tree, rows, rows, rows[:, 0], rows, torch.zeros(0), None)


@pytest.mark.parametrize("width", [1, 4])
def test_the_streak_counts_first_drafts_that_were_right(width):
    one, state = drafter(drafts=3), view([TEXT, TEXT, [4, 5]], width)
    tree = one.propose(state)
    one.observe(state, seen(tree, [7, 9, 5]))
    again = one.propose(state)
    assert [s.streak for s in told(again)] == [1, 0, 0]
    one.observe(state, seen(again, [7, 7, 5]))
    assert [s.streak for s in told(one.propose(state))] == [2, 1, 0]
    for _ in range(300):
        one.observe(state, seen(again, [7, 7, 5]))
    assert [s.streak for s in told(one.propose(state))] == [255, 255, 0]
    one.prefill(state, None)
    assert [s.streak for s in told(one.propose(state))] == [0, 0, 0]


def test_idle_batch():
    one, state = drafter(drafts=3), view([], 4)
    tree = one.propose(state)
    assert tree.tokens.shape == tree.parent.shape == (0, 4)
    one.observe(state, seen(tree, []))


def test_plan_and_policy():
    chain, tree = drafter(drafts=5), drafter(drafts=3, branches=4, adaptive=False)
    assert (chain.plan.width, chain.plan.tree, chain.plan.longest_run) == (6, False, 6)
    assert (tree.plan.width, tree.plan.tree, tree.plan.longest_run) == (13, True, 4)
    assert chain.plan.measures == (1, 2, 3, 5, 6)
    assert tree.plan.measures == ()
    assert isinstance(chain.width_policy(None), NgramWidth)
    assert isinstance(tree.width_policy(None), FixedWidth)
    assert chain.width_policy(None).widest == 6
    assert Ngram.reads_cpu_seq_lens is False
    assert Ngram.load(Ngram.Config(), None) is None


REFUSED = {
    "N4: nothing fits": (
        ["spec.max_match=4", "spec.corpus_limit=4", "spec.corpus={file}"],
        ["spec.corpus_limit=4", "spec.max_match=4", "use"],
    ),
    "min over max": (["spec.min_match=9"], ["spec.min_match=9", "spec.max_match=8", "use spec.max_match=9"]),
    "min zero": (["spec.min_match=0"], ["spec.min_match=0", "at least 1"]),
    "max huge": (["spec.max_match=33"], ["spec.max_match=33", "at most 32"]),
    "no drafts": (["spec.drafts=0"], ["spec.drafts=0", "at least 1"]),
    "no branch": (["spec.branches=0"], ["spec.branches=0"]),
    "large tree": (
        ["spec.drafts=30", "spec.branches=3"],
        ["spec.branches=3", "spec.drafts=30", "use spec.drafts=21"],
    ),
    "wider than attention": (
        ["spec.drafts=20", "attention=triton"],
        ["spec=ngram", "21", "attention=triton", "15 tokens"],
    ),
    "a wrong word": (["spec.continuation=newest"], ["spec.continuation=newest", "recent", "frequent"]),
    "a typo": (["spec.branchs=2"], ["branchs", "did you mean", "branches"]),
    "no such file": (["spec.corpus=/nowhere/x.txt"], ["spec.corpus=/nowhere/x.txt", "does not exist", "use"]),
    "a folder": (["spec.corpus=/"], ["spec.corpus", "is no file"]),
    "no name": (["spec.corpus=[]"], ["spec.corpus=[]", "spec.corpus=null"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_a_weight_is_read(case, tmp_path):
    overrides, words = REFUSED[case]
    file = tmp_path / "corpus.txt"
    file.write_text("some text")
    with pytest.raises(UserError) as error:
        rules.compose_checked(["spec=ngram", "model=tiny", *(o.format(file=file) for o in overrides)])
    for word in words:
        assert word in str(error.value)


def test_the_part_itself_refuses_too():
    with pytest.raises(UserError, match=r"spec\.min_match=5"):
        drafter(min_match=5, max_match=4)


def test_several_corpus_files_and_odd_names(tmp_path):
    first, second = tmp_path / "a b=c,d.txt", tmp_path / "e@f.jsonl"
    first.write_text("some text")
    second.write_text('{"text": "more"}')
    resolved = compose(["spec=ngram", "model=tiny", f"spec.corpus='{first}'"])
    rules.check(resolved)
    assert resolved.cfg["spec"]["corpus"] == str(first)
    one = drafter(corpus=(str(first), str(second)), drafts=3, min_match=2)
    tree = one.propose(view([[200, *b"mo"]], 4))
    assert tree.tokens.tolist() == [[ord("o"), ord("r"), ord("e"), 0]]
    assert tree.parent.tolist() == [[ROOT, 0, 1, ABSENT]], "a continuation ends with its document"


def test_facts_are_read_without_torch():
    code = (
        "import sys; from speculative.ngram.drafter import Ngram; Ngram.check(Ngram.Config());"
        "print('torch' in sys.modules, 'numpy' in sys.modules, Ngram.planned(Ngram.Config()).width)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "8"]
