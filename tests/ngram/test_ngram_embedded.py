"""`spec=ngram` on the embedded model: same text, fewer steps where the prompt is quoted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.engines import answers

from engine.code_state import PACKAGE_ROOT
from engine.llm import LLM
from engine.params import SamplingParams

COSTS = Path(__file__).parent / "step_costs.json"
PROMPT = "Repeat this sentence five times: the quick brown fox jumps over the lazy dog by the river."


@pytest.mark.model
def test_equal_to_plain_decoding_and_accepted():
    params = SamplingParams(max_tokens=48)
    base = ("model.dtype=float32", "threads=1")
    with LLM(*base) as llm:
        messages = [{"role": "user", "content": PROMPT}]
        plain = [llm.chat(messages, params)]
    with LLM(*base, "spec=ngram", f"step_costs={COSTS}") as llm:
        found = [llm.chat(messages, params)]
        counts = llm.metrics.snapshot()
        llm.check()
    assert answers(found) == answers(plain)
    assert counts["decode_tokens"] / (counts["decode_tokens"] - counts["accepted_drafts"]) > 1.2


@pytest.mark.model
def test_command_line(tmp_path):
    command = [sys.executable, "-P", "-m", "engine", "spec=ngram", f"step_costs={COSTS}", f"prompt={PROMPT}"]
    command += ["sampling.max_tokens=24", f"hydra.run.dir={tmp_path}/run"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "fox" in done.stdout
