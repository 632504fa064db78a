"""What a machine needs before the environment is made; names what is missing and how to get it.

Runs on the interpreter that is being judged, so its syntax stays old enough for any Python 3.6 or newer.
"""

import glob
import importlib.util
import os
import shutil
import sys
import sysconfig

LEAST = (3, 11)
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


def python_problem(version):
    """Too old an interpreter."""
    if tuple(version[:2]) >= LEAST:
        return ""
    found = ".".join(str(part) for part in version[:3])
    return (
        f"Python 3.11 or newer is needed, and {sys.executable or 'python3'} is {found}: "
        "install python3.11 and run make with PYTHON=python3.11"
    )


def venv_problem(find_spec=importlib.util.find_spec):
    """Debian and Ubuntu ship venv and ensurepip apart."""
    missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
    if not missing:
        return ""
    names = " and ".join(missing)
    return f"Python's {names} is missing: apt install python{HERE}-venv (or your system's package)"


def gpu_problems(has_gpu, which=shutil.which, include=None):
    """Triton compiles a small launcher with the C compiler at run time; without a GPU it never does."""
    if not has_gpu:
        return []
    problems = []
    if not any(which(name) for name in (os.environ.get("CC") or "cc", "gcc", "clang")):
        problems.append("Triton needs a C compiler on a GPU machine: apt install gcc (or dnf install gcc)")
    header = os.path.join(include or sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        packages = f"apt install python{HERE}-dev (or dnf install python3-devel)"
        problems.append(f"Triton needs {header} on a GPU machine: {packages}")
    return problems


def problems():
    """Everything that is missing, one sentence each."""
    has_gpu = bool(glob.glob("/dev/nvidia[0-9]*"))
    found = [python_problem(sys.version_info), venv_problem()]
    return [problem for problem in found if problem] + gpu_problems(has_gpu)


if __name__ == "__main__":
    missing = problems()
    for line in missing:
        sys.stderr.write(f"error: {line}\n")
    sys.exit(1 if missing else 0)
