"""Texts of kernels in CUDA C++ compiled for this host, in as many versions as are wanted, and run on tensors.
Kernels are those whose clusters are two blocks and whose maps are of two dimensions."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from front_on_host import Range
from torch import Tensor

from kernels.cuda.compile import text_of

HOST = Path(__file__).with_name("hopper_on_host.h")
MEMORY = {  # what a host has no word for
    "extern __shared__ unsigned char memory[];":
        "unsigned char* memory = host::now->block->memory.data() + host::DYNAMIC;",
    "__shared__ alignas(8) u64 barriers[2 * STAGES];":
        "u64* barriers = (u64*)(host::now->block->memory.data() + host::STATIC);",
    'extern "C" ': "",
}  # fmt: skip
RUN = """
extern "C" __attribute__((visibility("default"))) u64 ahead() { return host::front.copied; }
decltype(&v0::%s) kernels[] = {%s};
extern "C" __attribute__((visibility("default")))
const char* run(int version, Map* maps, u16* bias, u16* out, int* n, int grid, int room, int at,
                host::Range* written, int count, host::Range* results, int last) {
  host::wrong.clear();
  host::front.launched(written, count, *results, last);
  host::kernel = [=] { kernels[version](%s); };
  for (int block = 0; block < grid && host::wrong.empty(); block += 2) host::run(block, room, at + block);
  return host::wrong.c_str();
}
"""
# Hidden: of another kernel in this process the state of a cluster has another shape.
OPTIONS = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden"]


@dataclass(frozen=True)
class Version:
    """A kernel's text with these constants. edits: what of it is replaced by what."""

    stages: int = 4
    bias: bool = False
    edits: tuple[tuple[str, str], ...] = ()

    def text(self, kernel: str) -> str:
        text = text_of(f"{kernel}.cu")
        for here, other in (*MEMORY.items(), *self.edits):
            assert here in text, here
            text = text.replace(here, other)
        return text


class Map(ctypes.Structure):
    """As cluster_on_host.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("height", "width", "stride", "columns", "rows")),
    )


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with. boxes: each map's matrix and rows of a box, of 64 columns; numbers: the
    kernel's last arguments; memory: bytes that a block asks for; written: by the kernel in front, which may
    still run (nothing: it is launched plainly); last: that one ends when all else waits."""

    boxes: Sequence[tuple[Tensor, int]]
    bias: Tensor
    out: Tensor
    numbers: Sequence[int]
    grid: int
    memory: int
    written: Sequence[Tensor] = ()
    last: bool = False


@dataclass(frozen=True)
class Built:
    """The library of all versions."""

    library: ctypes.CDLL
    versions: Sequence[Version]

    def run(self, version: Version, given: Launch, seed: int) -> str:
        """What went wrong, or nothing; results are in `given.out`."""
        maps = (Map * len(given.boxes))(*(_map(*box) for box in given.boxes))
        numbers = (ctypes.c_int * len(given.numbers))(*given.numbers)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (given.bias, given.out))
        number = self.versions.index(version)
        front = ((Range * len(given.written))(*map(Range.of, given.written)), len(given.written))
        said: bytes = self.library.run(
            number, maps, *pointers, numbers, given.grid, given.memory, seed,
            *front, ctypes.byref(Range.of(given.out)), given.last,
        )  # fmt: skip
        return said.decode()

    def ahead(self) -> int:
        """Bytes that the last run asked for before the kernel in front had ended, all of its clusters."""
        return int(self.library.ahead())


def _map(matrix: Tensor, rows: int) -> Map:
    return Map(matrix.data_ptr(), *matrix.shape, matrix.stride(0), 64, rows)


def build(
    kernel: str,
    threads: int,
    given: str,
    defines: Mapping[str, int],
    versions: Sequence[Version],
    folder: Path,
) -> Built:
    """One library, each version of the kernel in a namespace of its own. threads: of a block; given: the
    arguments that it is called with, of `maps`, `bias`, `out` and the numbers `n`."""
    parts = [f'#define BLOCK_THREADS {threads}\n#include "{HOST}"\ntypedef unsigned short u16;\n']
    parts += [f"#define {name} {value}\n" for name, value in defines.items()]
    for number, version in enumerate(versions):
        parts.append(f"#define STAGES {version.stages}\n#define BIAS {int(version.bias)}\n")
        parts.append(f"namespace v{number} {{\n{version.text(kernel)}\n}}\n#undef STAGES\n#undef BIAS\n")
    names = ", ".join(f"v{number}::{kernel}" for number in range(len(versions)))
    source, library = folder / f"{kernel}.cpp", folder / f"{kernel}.so"
    source.write_text("".join(parts) + RUN % (kernel, names, given), encoding="utf-8")
    done = subprocess.run(
        ["g++", *OPTIONS, source, "-o", library], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
    loaded = ctypes.CDLL(str(library))
    loaded.run.restype, loaded.ahead.restype = ctypes.c_char_p, ctypes.c_uint64
    return Built(loaded, versions)
