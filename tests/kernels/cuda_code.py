"""What is in a cubin, by the tools that Triton brings along."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
PROBE = str(Path(__file__).parent / "cuda_probe.cu")


def _said(cubin: bytes, folder: Path, tool: str, *options: str) -> str:
    file = folder / "code.cubin"
    file.write_bytes(cubin)
    return subprocess.run([TOOLS / tool, *options, file], capture_output=True, text=True, check=True).stdout


def usage(cubin: bytes, folder: Path) -> dict[str, dict[str, int]]:
    """Of each kernel by name: REG (a thread's registers), STACK (bytes of it in memory), SHARED (bytes)."""
    said = _said(cubin, folder, "cuobjdump", "-res-usage")
    found = re.findall(r"Function (\w+):\s*(.*)", said)
    return {name: {key: int(n) for key, n in re.findall(r"(\w+):(\d+)", line)} for name, line in found}


def instructions(cubin: bytes, folder: Path) -> Counter[str]:
    """How often each instruction is there, by its name with modifiers: "HGMMA.64x16x16.F32.BF16"."""
    said = _said(cubin, folder, "nvdisasm", "-c")
    return Counter(
        re.findall(r"^\s+(?:/\*\w+\*/)?\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.a-z]*)", said, re.MULTILINE)
    )
