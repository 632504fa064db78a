"""Where a recording no longer fits: the run goes on, and one sentence says where and how the two part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import engines

from engine.errors import UserError
from engine.models.fake import FakeLM
from engine.params import SamplingParams
from engine.replay.course import Line, read_course
from engine.replay.follow import Recorded
from engine.replay.following import FollowingLLM
from engine.replay.recorder import Recorder
from engine.rules import compose_checked
from engine.tasks.base import EXIT_DIFFERENT, EXIT_OK

PROMPTS = [[65, 66, 67], [70] * 20, [80] * 9]
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


@pytest.fixture
def recorded(tmp_path: Path) -> list[Line]:
    with engines.make(*engines.FAKE, "seed=1", parts={"tape": Recorder(tmp_path / "old.jsonl")}) as llm:
        llm.generate(PROMPTS, PARAMS)
    return read_course(tmp_path / "old.jsonl")


def follower(tmp_path: Path, lines: list[Line], *, stopped: bool = False, patience: float = 60.0) -> Any:
    guide = Recorded(lines, stopped=stopped)
    config = dict(compose_checked([*engines.FAKE, "seed=1"]).cfg)
    return guide, FollowingLLM(config, Recorder(tmp_path / "new.jsonl", guide), guide, patience=patience)


def test_the_same_again(tmp_path: Path, recorded: list[Line]) -> None:
    guide, llm = follower(tmp_path, recorded)
    with llm:
        llm.generate(PROMPTS, PARAMS)
    assert (guide.parted, guide.steps) == (None, guide.recorded_steps)
    assert read_course(tmp_path / "new.jsonl") == recorded


@pytest.mark.parametrize(
    ("prompts", "params", "sentence"),
    [
        ([PROMPTS[0], [71] * 20, PROMPTS[2]], PARAMS, "after step 0: a request of 20 tokens came that the"),
        (PROMPTS, SamplingParams(max_tokens=13, ignore_eos=True), "after step 12: another decode step inst"),
        (
            PROMPTS,
            SamplingParams(max_tokens=11, ignore_eos=True),
            "after step 11: the end of request 1 (length, 11 tokens) instead of another",
        ),
        ([*PROMPTS, [90]], PARAMS, "after step 0: a request of 1 tokens came that the recording does not"),
    ],
)
def test_other_requests_part_the_courses(
    tmp_path: Path, recorded: list[Line], prompts: Any, params: SamplingParams, sentence: str
) -> None:
    guide, llm = follower(tmp_path, recorded)
    with llm:
        outputs = llm.generate(prompts, params)
    assert len(outputs) == len(prompts), "every request is answered all the same"
    assert sentence in str(guide.parted)
    assert "\n" not in str(guide.parted)


def test_a_request_that_never_comes_is_not_waited_for_forever(tmp_path: Path, recorded: list[Line]) -> None:
    guide, llm = follower(tmp_path, recorded, patience=0.05)
    with llm:
        assert len(llm.generate(PROMPTS[:2], PARAMS)) == 2
    assert guide.parted is not None
    assert guide.parted.startswith("after step 0: the arrival of request 3 (9 tokens, check ")
    assert guide.parted.endswith("did not come")


def test_the_order_of_handing_over_does_not_matter(tmp_path: Path, recorded: list[Line]) -> None:
    """Requests are known by what they ask, not by when they come; the recorded order gives the seeds."""
    guide, llm = follower(tmp_path, recorded)
    with llm, engines.make(*engines.FAKE, "seed=1") as plain:
        sampled = SamplingParams(max_tokens=12, ignore_eos=True)
        expected = engines.answers(plain.generate(PROMPTS, sampled))
        assert engines.answers(llm.generate(PROMPTS[::-1], sampled)) == expected[::-1]
    assert guide.parted is None


def test_a_prompt_that_cannot_run_is_refused_at_once(tmp_path: Path, recorded: list[Line]) -> None:
    _, llm = follower(tmp_path, recorded)
    with llm:
        with pytest.raises(UserError, match="empty"):
            llm.add([])
        with pytest.raises(UserError, match="token id 999"):
            llm.add([999])


def test_a_held_request_can_be_cancelled(tmp_path: Path, recorded: list[Line]) -> None:
    guide, llm = follower(tmp_path, recorded)
    with llm:
        name = llm.add(PROMPTS[2], PARAMS)
        assert llm.has_work()
        assert llm.step() == [], "two others are due before it"
        assert llm.cancel(name)
        (news,) = llm.step()
        assert (news.request_id, news.finish_reason) == (name, "cancelled")
    assert "instead of the arrival of request 1" in str(guide.parted)


def test_clearing_the_cache_does_not_wait(tmp_path: Path, recorded: list[Line]) -> None:
    _, llm = follower(tmp_path, recorded)
    with llm:
        assert llm.forget_prefixes() == 0


@pytest.mark.parametrize("damage", ["version", "torn"])
def test_a_recording_that_cannot_be_read_is_said(run: Any, again: Any, damage: str) -> None:
    folder = run("workload.limit=2")
    text = (folder / "schedule.jsonl").read_text()
    damaged = {"version": '{"course": 99}\n', "torn": text.replace('["d"', '["q"')}
    (folder / "schedule.jsonl").write_text(damaged[damage])
    code, out, report = again(folder)
    assert (code, report["courses"][0]["steps"]) == (EXIT_OK, None)
    reason = {"version": "was written by another version of Syncless", "torn": "is damaged"}
    assert f"batches: unknown, since schedule.jsonl {reason[damage]}" in out


def test_other_arithmetic_is_named_at_its_first_answer(
    run: Any, again: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: ids differ, the verdict says where, and that nothing recorded explains it."""
    folder = run("workload.limit=3")
    plain = FakeLM._digest
    monkeypatch.setattr(FakeLM, "_digest", lambda self, batch, kv: plain(self, batch, kv) + 1)
    code, out, report = again(folder)
    assert (code, report["identical"]) == (EXIT_DIFFERENT, False)
    assert "answer 1: other tokens from token 0 (" in out
    assert "batches: as recorded, 6 steps (schedule.jsonl)" in out
    assert "nothing that is recorded differs" in out


def test_adaptive_widths_are_those_of_the_recorded_costs(run: Any, again: Any, tmp_path: Path) -> None:
    """Widths follow from measured times: their table is in the folder, whatever becomes of the first one."""
    ask = ("spec=ngram", "attention=torch", "prompt=ab ab ab ab", "sampling.max_tokens=40")
    table = tmp_path / "costs.json"
    first = json.loads((run(*ask, "step_costs=measure") / "step_costs.json").read_text())
    table.write_text(json.dumps({**first, "seconds": [[b, w, 1.0] for b, w, _ in first["seconds"]]}))
    folder = run(*ask, f"step_costs={table}")
    assert json.loads((folder / "run.json").read_text())["measured"] == {"step_costs": "step_costs.json"}
    table.write_text(json.dumps({**first, "seconds": [[b, w, 1.0 * w] for b, w, _ in first["seconds"]]}))
    code, _, report = again(folder)
    assert (code, report["courses"][0]["parted"]) == (EXIT_OK, None)
    (folder / "step_costs.json").unlink()
    code, _, report = again(folder)
    assert code == EXIT_OK, "drafts change no token"
    assert "a decode step of 1 request(s), width 1 instead of a decode step" in report["courses"][0]["parted"]
