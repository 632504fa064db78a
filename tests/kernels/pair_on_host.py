"""kernels/cuda/pair.cu compiled for this host, in as many versions as are wanted, and run on tensors."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from kernels import cuda

HOST = Path(__file__).with_name("hopper_on_host.h")
KERNEL = Path(cuda.__file__).with_name("pair.cu")
MEMORY = {  # what a host has no word for
    "extern __shared__ unsigned char memory[];":
        "unsigned char* memory = host::now->block->memory.data() + host::DYNAMIC;",
    "__shared__ alignas(8) u64 barriers[2 * STAGES];":
        "u64* barriers = (u64*)(host::now->block->memory.data() + host::STATIC);",
    'extern "C" ': "",
}  # fmt: skip
RUN = """
using Kernel = void (*)(Map, Map, Map, const u16*, u16*, int, int, int);
Kernel kernels[] = {%s};
extern "C" const char* run(int version, Map* maps, u16* bias, u16* out, int* n, int grid, int room, int at) {
  host::wrong.clear();
  host::kernel = [=] { kernels[version](maps[0], maps[1], maps[2], bias, out, n[0], n[1], n[2]); };
  for (int block = 0; block < grid && host::wrong.empty(); block += 2) host::run(block, room, at + block);
  return host::wrong.c_str();
}
"""


@dataclass(frozen=True)
class Version:
    """The kernel's text with these constants; here: what of it is replaced by what."""

    stages: int = 4
    bias: bool = False
    here: str = ""
    wrong: str = ""

    @property
    def text(self) -> str:
        text = KERNEL.read_text(encoding="utf-8")
        for place, other in [*MEMORY.items(), *[(self.here, self.wrong)] * bool(self.here)]:
            assert place in text, place
            text = text.replace(place, other)
        return text


class Map(ctypes.Structure):
    """As hopper_on_host.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("height", "width", "stride", "columns", "rows")),
    )


@dataclass(frozen=True)
class Built:
    """The library of all versions."""

    library: ctypes.CDLL
    versions: Sequence[Version]

    def run(
        self, version: Version, x: Tensor, w: Tensor, bias: Tensor, out: Tensor, memory: int, seed: int
    ) -> str:
        """What went wrong, or nothing; results are in out [T, F]. memory: bytes that a block asks for."""
        maps = (Map * 3)(*(_map(t, rows) for t, rows in ((x, 128), (w, 128), (w, 96))))
        (tokens, k), lines = x.shape, out.shape[1]
        numbers = (ctypes.c_int * 3)(tokens, lines, -(-k // 64))
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (bias, out))
        said: bytes = self.library.run(
            self.versions.index(version), maps, *pointers, numbers, -(-lines // 224) * 2, memory, seed
        )
        return said.decode()


def _map(matrix: Tensor, rows: int) -> Map:
    return Map(matrix.data_ptr(), *matrix.shape, matrix.stride(0), 64, rows)


def build(versions: Sequence[Version], folder: Path) -> Built:
    """One library, each version in a namespace of its own."""
    parts = [f'#include "{HOST}"\ntypedef unsigned short u16;\n#define FIRST 128\n#define SECOND 96\n']
    for number, version in enumerate(versions):
        parts.append(f"#define STAGES {version.stages}\n#define BIAS {int(version.bias)}\n")
        parts.append(f"namespace v{number} {{\n{version.text}\n}}\n#undef STAGES\n#undef BIAS\n")
    names = ", ".join(f"v{number}::pair" for number in range(len(versions)))
    source, library = folder / "pair.cpp", folder / "pair.so"
    source.write_text("".join(parts) + RUN % names, encoding="utf-8")
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC"]
    done = subprocess.run(
        ["g++", *options, source, "-o", library], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
    loaded = ctypes.CDLL(str(library))
    loaded.run.restype = ctypes.c_char_p
    return Built(loaded, versions)


def gated(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """In bfloat16, rounded where separate kernels store values."""
    y = x.double() @ w.double().T + (0 if bias is None else bias.double())
    gate, up = y.bfloat16().float().chunk(2, -1)
    return ((gate / (1 + torch.exp(-gate))).bfloat16().float() * up).bfloat16()
