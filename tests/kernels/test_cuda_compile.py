"""CUDA sources to machine code for Hopper, without a GPU: what comes out, what is kept, what is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from cuda_code import PROBE, instructions, usage

from kernels.cuda import compile as compiling
from kernels.cuda.compile import Source, build, compiled
from kernels.cuda.nvrtc import Compiler, CudaCompileError
from kernels.cuda.wgmma import mma

SMALL = 'extern "C" __global__ void go(int* out) { *out = ANSWER; }\n'
SERIAL = """extern "C" __global__ void go(float* out) {
  float acc[4] = {};
  products_begin();
  for (int i = 0; i < 4; i++) { mma(acc, descriptor(0), descriptor(0), 1); acc[0] += 1; }
  products_commit();
  products_wait<0>();
  out[threadIdx.x] = acc[0];
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every (name, architecture) that went to the compiler."""
    asked: list[tuple[str, str]] = []
    real = Compiler.build

    def build(self: Compiler, text: str, name: str, arch: str) -> Any:
        asked.append((name, arch))
        return real(self, text, name, arch)

    monkeypatch.setattr(Compiler, "build", build)
    return asked


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.cu"
    file.write_text(SMALL)
    return str(file)


@pytest.mark.parametrize(("bfloat", "kind"), [(True, ".BF16"), (False, "")])
@pytest.mark.parametrize("dims", [2, 3, 4])
def test_shared_functions_are_hoppers_instructions(
    tmp_path: Path, bfloat: bool, kind: str, dims: int
) -> None:
    width = {2: 8, 3: 96, 4: 256}[dims]
    source = Source(PROBE, {"BF": int(bfloat), "DIMS": dims, "WIDTH": width}, mma([width], bfloat))
    made = build(source)
    assert made.log == ""
    used = usage(made.cubin, tmp_path)
    assert set(used) == {"copy", "product", "values"}
    assert {kernel["STACK"] for kernel in used.values()} == {0}
    found = instructions(made.cubin, tmp_path)
    assert found[f"HGMMA.64x{width}x16.F32{kind}"] >= 4
    assert found[f"UTMALDG.{dims}D" + (".MULTICAST" if dims == 2 else "")] == 1
    assert found["UCGABAR_ARV"] == 2


def test_a_product_that_cannot_be_left_running_is_in_the_log(
    cache: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    file = tmp_path / "serial.cu"
    file.write_text(SERIAL)
    source = Source(str(file), {"BF": 1}, mma([8], True))
    assert "C75" in build(source).log
    with caplog.at_level(logging.WARNING, "syncless"):
        compiled(source)
        compiled(source)
    (record,) = caplog.records
    assert "serial.cu" in record.getMessage()
    assert "C75" in record.getMessage()


@pytest.mark.parametrize("bfloat", [True, False])
def test_every_width_of_a_product_is_accepted(tmp_path: Path, bfloat: bool) -> None:
    file, widths = tmp_path / "none.cu", range(8, 257, 8)
    uses = "".join(f"__device__ void use(float (&acc)[{n // 2}]) {{ mma(acc, 0, 0, 1); }}\n" for n in widths)
    file.write_text(uses)
    text = mma([*widths, 8], bfloat)
    assert text.count("__device__") == len(widths)
    assert build(Source(str(file), {"BF": int(bfloat)}, text)).log == ""


@pytest.mark.parametrize("width", [0, 4, 12, 264, -8])
def test_other_widths_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match=f"a product of {width} columns"):
        mma([width], True)


def test_a_wrong_source_is_named_with_its_own_line(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text('// a comment\nextern "C" __global__ void go() { absent(); }\n')
    with pytest.raises(CudaCompileError) as caught:
        compiled(Source(str(file), {"BF": 1}))
    said = str(caught.value)
    assert "wrong.cu(2): error" in said
    assert '"absent" is undefined' in said
    assert "sm_90a" in said
    assert not list(cache.rglob("*.cubin"))


def test_a_file_that_another_includes_has_lines_of_its_own(tmp_path: Path) -> None:
    """Here one that is included before what it needs; the lines behind it keep their numbers."""
    file = tmp_path / "wrong.cu"
    file.write_text('// a comment\n#include "stages.cuh"\nint a = absent;\n')
    header = Path(compiling.__file__).with_name("stages.cuh").read_text().split("\n")
    line = next(n for n, text in enumerate(header, 1) if "STAGE_BYTES;" in text and "return" in text)
    with pytest.raises(CudaCompileError) as caught:
        build(Source(str(file), {"BF": 1}))
    assert f'stages.cuh({line}): error: identifier "STAGE_BYTES" is undefined' in str(caught.value)
    file.write_text(
        "constexpr u32 STAGES = 2, STAGE_BYTES = 2, X_BYTES = 1, EIGHTS = 4;\n" + file.read_text()
    )
    with pytest.raises(CudaCompileError, match=r'wrong.cu\(4\): error: identifier "absent" is undefined'):
        build(Source(str(file), {"BF": 1}))


def test_a_long_log_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "wrong.cu"
    file.write_text("".join(f"int a{i} = absent{i};\n" for i in range(50)))
    with pytest.raises(CudaCompileError) as caught:
        build(Source(str(file), {"BF": 1}))
    assert str(caught.value).count("\n") == 12


def test_an_unknown_architecture_is_refused(small: str) -> None:
    with pytest.raises(CudaCompileError, match="sm_1a"):
        build(Source(small, {"BF": 1, "ANSWER": 1}), "sm_1a")


def test_the_second_time_it_comes_from_disk(cache: Path, built: list[tuple[str, str]], small: str) -> None:
    source = Source(small, {"BF": 1, "ANSWER": 42})
    first = compiled(source)
    assert built == [(small, "sm_90a")]
    assert first[:4] == b"\x7fELF"
    (kept,) = cache.rglob("*.cubin")
    assert kept.read_bytes() == first
    assert compiled(Source(small, {"BF": 1, "ANSWER": 42})) == first
    kept.write_bytes(b"what is there is what is taken")
    assert compiled(source) == b"what is there is what is taken"
    assert len(built) == 1


def test_whatever_changes_the_code_is_compiled_again(
    cache: Path, built: list[tuple[str, str]], small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(small, {"BF": 1, "ANSWER": 42})
    compiled(source)
    compiled(Source(small, {"BF": 1, "ANSWER": 43}))
    compiled(Source(small, {"BF": 0, "ANSWER": 42}))
    compiled(Source(small, {"BF": 1, "ANSWER": 42}, mma([8], True)))
    compiled(source, "sm_100a")
    assert [arch for _, arch in built] == ["sm_90a"] * 4 + ["sm_100a"]
    Path(small).write_text(SMALL + "// changed\n")
    compiled(source)
    real = compiling.text_of
    monkeypatch.setattr(
        compiling, "text_of", lambda file: real(file) + ("// changed\n" if file == "hopper.cuh" else "")
    )
    compiled(source)
    maker = compiling.compiler()
    monkeypatch.setattr(maker, "version", (13, 99))
    compiled(source)
    assert len(built) == 8
    compiled(source)
    assert len(built) == 8
    assert len(list(cache.rglob("*.cubin"))) == 8


def test_text_has_all_parts_in_the_order_of_use(small: str) -> None:
    text = Source(small, {"BF": 1, "NAME": '"x"'}, "int generated;").text()
    places = [
        text.index(part)
        for part in (
            "#define BF 1\n",
            '#define NAME "x"\n',
            "struct alignas(64) Map",
            "int generated;",
            SMALL,
        )
    ]
    assert places == sorted(places)
