"""How the Triton backend settles between interpreter and compiler, and what it says when it cannot.

Each case is its own process: the choice is made once a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PRELUDE = """
import logging, sys, torch
sys.path[:0] = [{root!r}, {here!r}]
logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
from dataclasses import replace
from attention_cases import build, verify
"""
BUILD = """
from backends.triton import TritonAttention
context = build(verify(1)).context
TritonAttention(TritonAttention.Config(), context)
TritonAttention(TritonAttention.Config(), context)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    prelude = PRELUDE.format(root=str(ROOT), here=str(Path(__file__).parent))
    command = [sys.executable, "-c", prelude + code]
    return subprocess.run(command, env=clean, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("environment", [{}, {"TRITON_INTERPRET": "1"}])
def test_interpreter_by_itself_and_one_warning(environment: dict[str, str]) -> None:
    done = run(BUILD + "print('built')", **environment)
    assert done.stdout == "built\n", done.stderr
    assert done.stderr.count("syncless WARNING") == 1
    assert "interpreter" in done.stderr


def refused(code: str, **environment: str) -> str:
    caught = f"""
from engine.errors import UserError
try:
    {code.strip().replace(chr(10), chr(10) + "    ")}
except UserError as error:
    print(error)
"""
    return run(caught, **environment).stdout


def test_triton_loaded_for_a_gpu_first() -> None:
    said = refused("import triton\n" + BUILD)
    assert "TRITON_INTERPRET=1" in said
    assert "attention=torch" in said


def test_interpreter_mode_on_a_gpu() -> None:
    on_gpu = BUILD.replace(
        ").context", ").context\ncontext = replace(context, device=torch.device('cuda'))", 1
    )
    assert "unset TRITON_INTERPRET" in refused(on_gpu, TRITON_INTERPRET="1")


def test_missing_package() -> None:
    hide = "import importlib.util as u\nreal = u.find_spec\n"
    hide += "u.find_spec = lambda name, *rest: None if name == 'triton' else real(name, *rest)\n"
    said = refused(hide + BUILD)
    assert "package triton" in said
    assert "pip install" in said


@pytest.mark.parametrize(
    ("triton", "numpy", "works"),
    [
        ("3.6.0", "2.4.1", False),
        ("3.6.0", "2.3.5", True),
        ("3.7.1", "2.4.1", True),
        ("3.6.1", "3.0.0", False),
    ],
)
def test_interpreter_and_numpy_must_match(triton: str, numpy: str, works: bool) -> None:
    fake = (
        f"import importlib.metadata as m\nm.version = { {'triton': triton, 'numpy': numpy}!r}.__getitem__\n"
    )
    said = refused(fake + BUILD)
    assert (said == "") == works
    assert works or "'numpy<2.4'" in said


def test_importable_without_torch_and_triton() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from backends.hybrid import Hybrid
from backends.torch_sdpa import TorchSDPA
from backends.triton import TritonAttention
facts = {{"prefill": TorchSDPA.facts({{}}), "decode": TritonAttention.facts({{}})}}
assert Hybrid.facts(facts).device_metadata
print(sorted({{"torch", "triton"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_torch_alone_loads_no_triton() -> None:
    """Else the interpreter could not be chosen by the time a backend is built."""
    assert torch.__version__
    assert run("print('triton' in sys.modules)").stdout == "False\n"
