"""The import graph goes one way, and files that configs name stay free of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORDER = ("kernels", "backends", "speculative", "engine")
LEAVES = {"engine.batch", "engine.build", "engine.compiled", "engine.typed", "engine.errors", "engine.lazy"}
# What a draft model shares with a target: shapes, RoPE, linear maps, checkpoints. Leaves too.
LEAVES |= {
    f"engine.models.{n}"
    for n in ("shape", "scaling", "rope", "linear", "weights", "names", "quantize", "hf_config", "checkpoint")
} | {
    "engine.models.safetensors_reader",
    "engine.sampling.choose",
    "engine.sampling.asked",
    "engine.sampling.rng",
    "engine.kernel_choices.limits",
    "engine.kernel_choices.plans",
}
# Concrete parts live here; engine may name the contracts, composites and the algorithm-free helpers only.
ENGINE_MAY = {"backends.base", "backends.two_batch"} | {
    f"speculative.{n}" for n in ("base", "views", "accept", "tree", "width", "ops", "forced")
}


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ORDER}


def _module_part(name: str) -> str:
    """The longest prefix of a dotted name that is a module of ours."""
    parts = name.split(".")
    while parts:
        base = ROOT.joinpath(*parts)
        if base.with_suffix(".py").exists() or (base / "__init__.py").exists():
            return ".".join(parts)
        parts.pop()
    return name


def _violations(package: str) -> list[str]:
    rank = ORDER.index(package)
    bad = []
    for path in _files(package):
        for name in sorted(set(map(_module_part, _imports(path)))):
            top = name.split(".")[0]
            upward = ORDER.index(top) > rank and name not in LEAVES and name != "engine"
            concrete = package == "engine" and top in ("backends", "speculative") and name != top
            if upward or (concrete and name not in ENGINE_MAY):
                bad.append(f"{path.relative_to(ROOT)} imports {name}")
    return bad


@pytest.mark.parametrize("package", ORDER)
def test_imports_go_one_way(package: str) -> None:
    assert _violations(package) == []


def test_the_check_sees_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ORDER:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "backends" / "bad.py").write_text("from engine.scheduler import Scheduler\n")
    (tmp_path / "engine" / "scheduler.py").write_text("from backends.bad import x\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert _violations("backends") == ["backends/bad.py imports engine.scheduler"]
    assert _violations("engine") == ["engine/scheduler.py imports backends.bad"]


# What packages offer, and the contract of attention, of which engine may import this file alone.
PASSED_ON = {"engine.LLM", "engine.SamplingParams", "engine.cli.main", "backends.base.ModelOps"}


def _passed_on(path: Path) -> set[str]:
    """Dotted names that a file imports from modules that only imported them themselves."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        base = ROOT.joinpath(*node.module.split("."))
        source = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()), None)
        if source is not None:
            imported = _imports(source) if node.module.split(".")[0] in ORDER else set()
            borrowed = {name.rpartition(".")[2] for name in imported if _module_part(name) != name}
            found |= {f"{node.module}.{a.name}" for a in node.names if a.name in borrowed}
    return found


@pytest.mark.parametrize("package", ORDER)
def test_names_are_imported_from_where_they_live(package: str) -> None:
    found = {f"{path.relative_to(ROOT)}: {name}" for path in _files(package) for name in _passed_on(path)}
    assert {line for line in found if line.partition(": ")[2] not in PASSED_ON} == set()


def test_a_name_that_was_passed_on_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "home.py").write_text("class Value: ...\n")
    (tmp_path / "engine" / "shop.py").write_text("from engine.home import Value\nclass Own: ...\n")
    user = tmp_path / "engine" / "user.py"
    user.write_text("from engine import home\nfrom engine.shop import Own, Value\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert _passed_on(user) == {"engine.shop.Value"}


def test_leaves_import_only_leaves() -> None:
    for leaf in LEAVES:
        path = ROOT.joinpath(*leaf.split(".")).with_suffix(".py")
        assert {_module_part(name) for name in _imports(path)} <= LEAVES


def test_every_target_of_a_config_imports_without_torch() -> None:
    targets = {
        line.split(":", 1)[1].strip()
        for path in (ROOT / "conf").rglob("*.yaml")
        for line in path.read_text().splitlines()
        if line.strip().startswith("_target_:")
    }
    assert len(targets) > 10
    code = (
        "import importlib, sys\n"
        f"for target in {sorted(targets)!r}:\n"
        "    module, _, name = target.rpartition('.')\n"
        "    getattr(importlib.import_module(module), name)\n"
        "    assert 'torch' not in sys.modules, target\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_every_module_imports_alone() -> None:
    """No import cycle hides behind a lucky order (each module in its own fresh interpreter state)."""
    code = "import importlib, sys, os\nname = sys.argv[1]\nimportlib.import_module(name)\n"
    heads = [
        "engine.batch",
        "engine.loop",
        "engine.container",
        "engine.llm",
        "engine.scheduler",
        "engine.step",
    ]
    for name in heads:
        subprocess.run([sys.executable, "-c", code, name], check=True, cwd=ROOT, timeout=120)
