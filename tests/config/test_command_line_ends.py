"""How a command line ends when something cuts it short: Ctrl-C, a closed pipe, broken streams, a bug."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from command_lines import FAST, in_shell, process

from engine.cli.main import CLOSED_PIPE, INTERRUPTED, main


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_task_is_exit_130(cli, monkeypatch, number):
    def press(*_):
        signal.raise_signal(number)

    monkeypatch.setattr("engine.cli.execute.compose_draft", press)
    ran = cli("prompt=hi")
    assert ran.code == INTERRUPTED
    assert ran.err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_first_ctrl_c_saves_what_there_is_and_exits_130(tmp_path):
    running = process(
        "model=tiny", "sampling.max_tokens=3000", "sampling.ignore_eos=true", "prompt=go", cwd=tmp_path
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("outputs.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == INTERRUPTED, err
    assert "Traceback" not in err
    folder = Path(out.splitlines()[-1])
    assert (folder / "result.json").is_file()


def test_closed_pipe_is_quiet(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    running = process(*FAST, "prompt=hi", cwd=tmp_path, stdout=writer)
    os.close(writer)
    err = running.communicate(timeout=60)[1]
    assert running.returncode == CLOSED_PIPE
    assert "Traceback" not in err
    assert "Exception ignored" not in err


@pytest.mark.parametrize(
    ("line", "encoding", "code", "words"),
    [
        ("prompt=hi >&- 2>&- <&-", "utf-8", 0, ""),
        ("prompt=hi > /dev/full", "utf-8", 1, "error: No space left on device"),
        ("prompt=é", "ascii", 0, ""),
        (r"prompt=- < bytes", "utf-8:strict", 1, "error: standard input (prompt=-) is not UTF-8 text"),
        (r"task=chat < bytes", "utf-8:strict", 0, "[that message is not UTF-8 text: it was left out]"),
    ],
)
def test_no_stream_ends_a_run_with_a_traceback(tmp_path, line, encoding, code, words):
    (tmp_path / "bytes").write_bytes(b"a\xffb\n")
    ran = in_shell(line, tmp_path, PYTHONIOENCODING=encoding)
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.startswith(words)
    assert "Traceback" not in ran.stderr
    assert code or len(list(tmp_path.glob("outputs/*/*/result.json"))) == 1


def test_a_bug_keeps_its_traceback(monkeypatch):
    def bug(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("engine.cli.execute.compose_draft", bug)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["prompt=hi"])
