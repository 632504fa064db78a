"""A CUDA source of this package and its machine code, compiled once and then taken from Triton's cache on
disk. Knows no kernel and no device.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from triton.runtime.cache import get_cache_manager

from kernels.cuda.nvrtc import Built, Compiler, compiler

logger = logging.getLogger("syncless")

_FOLDER = Path(__file__).parent
_SHARED = "hopper.cuh"
_INCLUDE = re.compile(r'#include "(\w+\.cuh)"\n')


@dataclass(frozen=True)
class Source:
    """A file of this folder and what stands before it: `defines` (BF among them, see hopper.cuh; texts go in
    as they are) and functions that were generated (`wgmma.mma`)."""

    file: str
    defines: Mapping[str, int | str]
    generated: str = ""

    def text(self) -> str:
        """All of it in the order of use; messages name the files and their own lines."""
        defines = "".join(f"#define {name} {value}\n" for name, value in self.defines.items())
        parts = [(_SHARED, text_of(_SHARED)), ("generated", self.generated), (self.file, text_of(self.file))]
        return defines + "".join(f'#line 1 "{name}"\n{text}\n' for name, text in parts)


def text_of(file: str) -> str:
    """A file of this folder, with those that it includes in their places."""
    parts = []
    for number, line in enumerate(_FOLDER.joinpath(file).read_text(encoding="utf-8").splitlines(True), 1):
        included = _INCLUDE.fullmatch(line)
        if included is None:
            parts.append(line)
        else:
            name = included[1]
            parts.append(f'#line 1 "{name}"\n{text_of(name)}#line {number + 1} "{file}"\n')
    return "".join(parts)


def build(source: Source, arch: str = "sm_90a") -> Built:
    """Compile now, whatever is on disk, and keep the compiler's log. Raises CudaCompileError."""
    return compiler().build(source.text(), source.file, arch)


def compiled(source: Source, arch: str = "sm_90a") -> bytes:
    """The machine code (cubin) of a source, kept in Triton's cache folder. Raises CudaCompileError."""
    maker, text, name = compiler(), source.text(), f"{Path(source.file).stem}.cubin"
    kept = get_cache_manager(_key(maker, text, arch))
    path = kept.get_file(name)
    if path is not None:
        return Path(path).read_bytes()
    built = maker.build(text, source.file, arch)
    if built.log:  # such as products that it could not leave running
        logger.warning("NVRTC %d.%d compiled %s with a remark: %s", *maker.version, source.file, built.log)
    kept.put(built.cubin, name)
    return built.cubin


def _key(maker: Compiler, text: str, arch: str) -> str:
    return hashlib.sha256(f"{maker.version} {arch}\n{text}".encode()).hexdigest()
