"""kernels/cuda/attention_queue.cu compiled for this host, in as many versions as are wanted, and launched by
its own launcher (kernels/attention_queue.py)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from front_on_host import Range
from torch import Tensor

from kernels.cuda.compile import text_of

HOST = Path(__file__).with_name("queue_on_host.h")
BEGIN, END = (
    "typedef long long i64;",
    "struct Ring {",
)  # between them: words that queue_on_host.h has for a host
PLACES = {  # what a host has no word for
    "extern __shared__ unsigned char memory[];": "unsigned char* memory = host::place(host::DYNAMIC);",
    "__shared__ alignas(8) u64 bars[2 * UNITS + 4];": "u64* bars = (u64*)host::place(host::BARS);",
    "__shared__ float between[WARPS][8];": "auto between = (float (*)[8])host::place(host::BETWEEN);",
    "__shared__ int told[2][2];": "auto told = (int (*)[2])host::place(host::TOLD);",
    'extern "C" ': "",
}  # fmt: skip
RUN = """
decltype(&v0::attention_queue) kernels[] = {%s};
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN u64 copied() { return host::copied; }
SHOWN u64 ahead() { return host::front.copied; }
SHOWN const char* run(int version, Map* maps, unsigned short* out, host::Range* read, u32* queue, int items,
                      int table_row, float scale, int grid, int room, int seed,
                      host::Range* written, int count, host::Range* results, int last) {
  host::wrong.clear();
  host::readable.assign(read, read + 3);
  host::front.launched(written, count, *results, last);
  auto *table = (const int*)read[0].begin, *lens = (const int*)read[2].begin;
  auto* rows = (const i64*)read[1].begin;
  host::kernel = [=] {
    kernels[version](maps[0], maps[1], maps[2], out, table, rows, lens, queue, items, table_row, scale);
  };
  host::run(grid, room, seed);
  return host::wrong.c_str();
}
"""
AROUND = 64  # rows of 128 values around the results


@dataclass(frozen=True)
class Version:
    """The kernel's text with these constants. edits: what of it is replaced by what."""

    kv_heads: int
    group: int
    page: int
    units: int = 6
    edits: tuple[tuple[str, str], ...] = ()

    @property
    def defines(self) -> Mapping[str, int]:
        return {"KV_HEADS": self.kv_heads, "GROUP": self.group, "PAGE": self.page, "UNITS": self.units}

    @property
    def text(self) -> str:
        text = text_of("attention_queue.cu")
        begin, end = text.index(BEGIN), text.index(END)
        text = text[:begin] + text[end:]
        for place, other in (*PLACES.items(), *self.edits):
            assert place in text, place
            text = text.replace(place, other)
        return text


class Map(ctypes.Structure):
    """As queue_on_host.h has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_uint64 * 4) for name in ("dims", "strides", "box")),
    )


def mapped(tensor: Tensor, dims: Sequence[int], strides: Sequence[int], box: Sequence[int]) -> Map:
    """In place of kernels.cuda.driver.tensor_map."""
    four = ctypes.c_uint64 * 4
    return Map(tensor.data_ptr(), four(*dims), four(tensor.element_size(), *strides), four(*box))


@dataclass(frozen=True)
class Built:
    """The library of all versions."""

    library: ctypes.CDLL
    versions: Sequence[Version]


@dataclass
class OnHost:
    """In place of a CudaKernel: a launch runs on the host, in an order drawn from the seed, with a block's
    `memory` in bytes. written: what the kernel in front of an early launch writes; last: it ends when all
    else waits. said: what went wrong in the launches so far, one after another; copied, ahead: bytes that the
    last one copied, and asked for before the end of the kernel in front."""

    built: Built
    version: Version
    memory: int
    seed: int
    written: Sequence[Tensor] = ()
    last: bool = False
    said: str = ""
    copied: int = 0
    ahead: int = 0

    def __call__(self, grid: int, args: Sequence[Any], *, early: bool = False) -> None:
        *maps, out, table, rows, lens, queue, items, table_row, scale = args
        lines = out.numel() // 128
        around = torch.full((lines + 2 * AROUND, 128), 7.5, dtype=out.dtype)
        read = (Range * 3)(*map(Range.of, (table, rows, lens)))
        written = [Range.of(x) for x in self.written] if early else []
        said: bytes = self.built.library.run(
            self.built.versions.index(self.version), (Map * 3)(*maps),
            ctypes.c_void_p(around[AROUND:].data_ptr()), read, ctypes.c_void_p(queue.data_ptr()),
            items, table_row, ctypes.c_float(scale), grid, self.memory, self.seed,
            (Range * len(written))(*written), len(written), ctypes.byref(Range.of(around)), self.last,
        )  # fmt: skip
        self.said, self.copied = self.said + said.decode(), self.built.library.copied()
        self.ahead = self.built.library.ahead()
        out.copy_(around[AROUND : AROUND + lines].view(out.shape))
        if not bool((around[:AROUND] == 7.5).all() and (around[AROUND + lines :] == 7.5).all()):
            self.said += "something around the results was written"


def build(versions: Sequence[Version], folder: Path) -> Built:
    """One library, each version in a namespace of its own."""
    parts = [f'#include "{HOST}"\n']
    for number, version in enumerate(versions):
        parts += [f"#define {name} {value}\n" for name, value in version.defines.items()]
        parts.append(f"namespace v{number} {{\n{version.text}\n}}\n")
        parts += [f"#undef {name}\n" for name in version.defines]
    names = ", ".join(f"v{number}::attention_queue" for number in range(len(versions)))
    source, library = folder / "queue.cpp", folder / "queue.so"
    source.write_text("".join(parts) + RUN % names, encoding="utf-8")
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden"]
    done = subprocess.run(
        ["g++", *options, source, "-o", library], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
    loaded = ctypes.CDLL(str(library))
    loaded.run.restype, loaded.copied.restype = ctypes.c_char_p, ctypes.c_uint64
    loaded.ahead.restype = ctypes.c_uint64
    return Built(loaded, versions)
