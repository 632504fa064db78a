"""How a job ended, from its exit code and its log."""

from __future__ import annotations

import pytest

from engine.sweeps.outcome import Ending, last_words, memory_kills, verdict
from engine.sweeps.states import JobState

TRACE = "Traceback (most recent call last):\n  File x\n    raise\n{}\n"


@pytest.mark.parametrize(
    ("ending", "log", "state", "words"),
    [
        (Ending(0), "all is well: RuntimeError: no", "finished", None),
        (Ending(1), "error: cache.page_size=0 has to be at least 1\n", "failed", "cache.page_size=0 has to"),
        (Ending(1), "error: 2 problems\n  - one\n  - two\n", "failed", "one; two"),
        (Ending(1), TRACE.format("ValueError: no"), "failed", "ValueError: no"),
        (Ending(3), "the last line\n\n", "failed", "the last line"),
        (Ending(3), "", "failed", "exit code 3"),
        (Ending(1), TRACE.format("torch.OutOfMemoryError: CUDA out of memory."), "out_of_memory", "CUDA"),
        (Ending(1), TRACE.format("MemoryError"), "out_of_memory", "MemoryError"),
        (
            Ending(1),
            TRACE.format("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: x"),
            "out_of_memory",
            "can't allocate",
        ),
        (Ending(1), "I ran out of memory, said the model.\nKeyError: 'a'\n", "failed", "KeyError"),
        (Ending(-9), "MemoryError in a text", "killed", "SIGKILL"),
        (Ending(-9, memory_kills=1), "", "out_of_memory", "for want of memory"),
        (Ending(-11, memory_kills=1), "", "killed", "SIGSEGV"),
        (Ending(-6), "terminate: std::bad_alloc: out of memory\n", "out_of_memory", "SIGABRT"),
        (Ending(130, stopped=True), "", "interrupted", "the sweep was interrupted"),
        (Ending(130), "", "killed", "SIGINT or SIGTERM"),
        (Ending(-9, stopped=True), "", "interrupted", "the sweep was interrupted"),
        (Ending(0, stopped=True), "", "finished", None),
        (Ending(130, late=True, limit=1.5), "", "timeout", "sweep.timeout=1.5"),
    ],
)
def test_verdict(tmp_path, ending, log, state, words):
    file = tmp_path / "log.txt"
    file.write_text(log)
    found, reason = verdict(ending, file)
    assert found == state
    assert (reason is None) if words is None else (words in reason)


def test_of_a_long_log_the_end_counts_and_a_long_line_is_cut(tmp_path):
    file = tmp_path / "log.txt"
    file.write_bytes(b"OSError: early\n" + b"\xff progress\n" * 20000 + b"ValueError: " + b"x" * 1000 + b"\n")
    assert last_words(file).startswith("ValueError: xxx")
    assert len(last_words(file)) == 400
    assert last_words(tmp_path / "absent") is None


def test_the_kernels_count_of_memory_kills(tmp_path):
    counters = tmp_path / "vmstat"
    counters.write_text("pgfault 12\noom_kill 7\nhtlb 0\n")
    assert memory_kills(counters) == 7
    counters.write_text("pgfault 12\n")
    assert memory_kills(counters) == 0
    assert memory_kills(tmp_path / "absent") == 0


def test_a_state_reads_back_and_another_file_does_not():
    state = JobState("a", "failed", "no", 1, 2.5, "then", "now", 3)
    assert JobState.from_document({**state.as_document(), "of a later version": 1}) == state
    with pytest.raises(KeyError):
        JobState.from_document({"id": "a"})
