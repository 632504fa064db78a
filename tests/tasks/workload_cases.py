"""Shared by the tests of workloads: one by its overrides, its items, a file of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from engine.build import make_config, target_class
from engine.conf_tree import CONF
from engine.workloads.base import WorkItem, Workload


def workload(*overrides: str) -> Workload:
    """The workload of these overrides, its yaml read without Hydra, which would take most of the time."""
    values = dict(line.split("=", 1) for line in overrides)
    node = yaml.safe_load((CONF / "workload" / f"{values.pop('workload')}.yaml").read_text())
    node |= {key: value if key == "path" else yaml.safe_load(value) for key, value in values.items()}
    cls = target_class(node["_target_"])
    made = cls(make_config(cls, node, "workload"))
    assert isinstance(made, Workload)
    return made


def items(*overrides: str) -> list[WorkItem]:
    return workload(*overrides).items(320)


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return f"path={path}"
