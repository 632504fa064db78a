"""What makes dependent launches safe, checked in the kernels' own text: the wait is in every program's way,
and before it nothing is read but weights and what was written early enough, which
tests/engine/test_launch_distance.py finds out. Of kernels in CUDA C++ only that they wait and what the queue
reads: what they do before, and that no program ends without, is in the tests that run their text."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ENTER = ("enter", "gluon_enter")  # the wait, in either language
KERNELS = Path(__file__).parents[2] / "kernels"
CUDA = KERNELS / "cuda"
WEIGHTS = {"weight_ptr", "a_weight_ptr", "b_weight_ptr", "w_ptr"}  # written before any kernel runs
TABLES = {"cos_ptr", "sin_ptr"}  # these too
EARLIER = {  # written two kernels in front or earlier, see kernels.launch.enter; read past the L1 cache
    "_rope_store": {"positions_ptr", "slots_ptr"},
    "_attention_tile": {"table_ptr", "rows_ptr", "lens_ptr", "start_ptr", "tree_ptr", "k_ptr", "v_ptr"},
    "_attention_stream": {"table_ptr", "rows_ptr", "lens_ptr"},  # and old keys, by copies past the L1 cache
}


def dependent_kernels() -> dict[str, ast.FunctionDef]:
    """Functions of kernels/ that take PDL, `enter` itself apart."""
    return {
        node.name: node
        for path in sorted(KERNELS.glob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and "PDL" in {argument.arg for argument in node.args.args}
        and node.name not in ENTER
    }


FOUND = dependent_kernels()


def problems(kernel: ast.FunctionDef) -> list[str]:
    """Why a kernel's programs might end without the wait, or touch too early what others write."""
    calls = {f"{name}(PDL)" for name in ENTER}
    at = next((i for i, line in enumerate(kernel.body) if ast.unparse(line) in calls), None)
    if at is None:
        return ["it does not call enter(PDL) outside of branches and loops"]
    before = [node for line in kernel.body[:at] for node in ast.walk(line)]
    found = ["it may return before enter"] * any(isinstance(node, ast.Return) for node in before)
    names = {node.id for node in before if isinstance(node, ast.Name) and node.id.endswith("_ptr")}
    earlier = EARLIER.get(kernel.name, set())
    found += [f"it touches {name} before enter" for name in sorted(names - WEIGHTS - TABLES - earlier)]
    found += [f"it reads {text} through the L1 cache" for text in loads(before) if stale(text, earlier)]
    early = [ast.unparse(node.func) for node in before if isinstance(node, ast.Call)]
    return found + [f"it calls {call} before enter" for call in early if "store" in call or "atomic" in call]


def loads(nodes: list[ast.AST]) -> list[str]:
    return [
        ast.unparse(node) for node in nodes if isinstance(node, ast.Call) and "load" in ast.unparse(node.func)
    ]


def stale(load: str, earlier: set[str]) -> bool:
    return any(name in load for name in earlier) and "cache_modifier='.cg'" not in load


def test_all_kernels_that_may_start_early_are_looked_at() -> None:
    expected = {
        "_attention_stream",
        "_attention_tile",
        "_linear_direct",
        "_linear_rows",
        "_linear_tile",
        "_sum_parts",
        "_pick",
        "_rms_norm",
    }
    assert expected | {"_norm_pair", "_rope_store", "_silu_mul"} <= set(FOUND)


def test_streams_read_nothing_earlier_than_tiles_do() -> None:
    """test_launch_distance follows what tiles read; the interpreter knows no streams and no queue, which
    launch in their place. What these copy early: test_attention_stream_text, test_attention_queue_early."""
    assert EARLIER["_attention_stream"] <= EARLIER["_attention_tile"]
    queue = (CUDA / "attention_queue.cu").read_text()
    read = {f"{name}_ptr" for name in re.findall(r"\bread\(batch\.(\w+)", queue)}
    assert read == EARLIER["_attention_stream"]  # of the batch, early or not
    loads = re.findall(r"\bld\.global[\w.]*", queue)
    assert loads
    assert all(load.startswith("ld.global.cg.") for load in loads)


@pytest.mark.parametrize("name", FOUND)
def test_every_program_waits_before_it_touches_what_others_write(name: str) -> None:
    assert problems(FOUND[name]) == []


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("x = tl.load(x_ptr)\nenter(PDL)", "touches x_ptr"),
        ("if tl.program_id(0) > n:\n    return\nenter(PDL)", "may return"),
        ("if n > 0:\n    enter(PDL)", "does not call enter"),
        ("tl.store(w_ptr, 0)\nenter(PDL)", "calls tl.store"),
        ("w = tl.load(w_ptr)\nenter(PDL)\nx = tl.load(x_ptr)", ""),
    ],
)
def test_what_would_be_unsafe_is_found(lines: str, problem: str) -> None:
    text = "def kernel(x_ptr, w_ptr, n, PDL):\n" + "".join(f"    {line}\n" for line in lines.split("\n"))
    kernel = ast.parse(text).body[0]
    assert isinstance(kernel, ast.FunctionDef)
    assert (problem in str(problems(kernel))) if problem else problems(kernel) == []


@pytest.mark.parametrize(
    ("load", "problem"),
    [
        ("tl.load(slots_ptr)", "through the L1 cache"),
        ("tl.load(slots_ptr, cache_modifier='.cg')", ""),
        ("tl.load(k_ptr, cache_modifier='.cg')", "touches k_ptr"),
    ],
)
def test_what_older_kernels_wrote_is_read_past_the_first_cache(load: str, problem: str) -> None:
    kernel = ast.parse(f"def _rope_store(k_ptr, slots_ptr, PDL):\n    x = {load}\n    enter(PDL)").body[0]
    assert isinstance(kernel, ast.FunctionDef)
    assert (problem in str(problems(kernel))) if problem else problems(kernel) == []


def launched_early(launcher: str) -> dict[str, bool]:
    """The kernel in CUDA C++ that a module makes, if any, and whether it is ever launched early."""
    calls = [node for node in ast.walk(ast.parse(launcher)) if isinstance(node, ast.Call)]
    made = [ast.literal_eval(call.args[1]) for call in calls if ast.unparse(call.func) == "CudaKernel"]
    assert len(made) <= 1
    return dict.fromkeys(made, any(word.arg == "early" for call in calls for word in call.keywords))


def waits(source: str) -> dict[str, bool]:
    """Kernels of a source, and whether they wait before they return or let the next one start."""
    found = {}
    for text in source.split('extern "C" __global__')[1:]:
        before, wait, _ = text.partition("front_has_ended();")
        (name,) = re.findall(r"(\w+)\(const ", before.partition("{")[0])
        found[name] = bool(wait) and not re.search(r"\breturn\b|launch_dependents", before)
    return found


def test_kernels_in_cuda_that_are_launched_early_wait() -> None:
    texts = [path.read_text() for path in KERNELS.glob("*.py")]
    early = {name: is_early for text in texts for name, is_early in launched_early(text).items()}
    wait = {name: does for path in CUDA.glob("*.cu") for name, does in waits(path.read_text()).items()}
    assert set(wait) == set(early)
    assert early == {"attention_queue": True, "pair": True, "halves": False}
    assert [name for name in early if early[name] and not wait[name]] == []


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("x = 1; front_has_ended(); return;", True),
        ("x = 1;", False),
        ("if (x) return; front_has_ended();", False),
        ('asm("griddepcontrol.launch_dependents;"); front_has_ended();', False),
    ],
)
def test_a_kernel_in_cuda_without_a_wait_in_its_way_is_found(body: str, wanted: bool) -> None:
    text = (
        f'void other() {{}}\nextern "C" __global__ void __launch_bounds__(64) go(const int* x) {{ {body} }}'
    )
    assert waits(text) == {"go": wanted}
