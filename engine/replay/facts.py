"""What only a built engine knows of where its outputs come from: arithmetic, sizes, files, measured choices.

For run.json. Knows engines by their plain attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.build import make_config, target_class
from engine.lazy import lazy_import
from engine.models.files import sha256_of

if TYPE_CHECKING:
    import torch

    from engine.llm import LLM
    from speculative.base import Speculator
else:
    torch = lazy_import("torch")


def engine_facts(engine: LLM, config: Mapping[str, Any]) -> dict[str, Any]:
    """Facts under their names in run.json. measured: tables that lie in the run folder, by the root setting
    that takes a file of them."""
    return {
        "threads": torch.get_num_threads(),
        "arithmetic": arithmetic(engine.device),
        "kv_tokens": engine.kv_tokens,
        "max_context": engine.max_context,
        "draft_files": draft_files(engine, config["spec"]),
        "measured": {name: f"{name}.json" for name in engine.measured},
    }


def arithmetic(device: str) -> dict[str, Any]:
    """What decides which instructions and libraries compute."""
    facts: dict[str, Any] = {
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if device.startswith("cuda"):
        gpu = torch.cuda.get_device_properties(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        facts["capability"] = f"{gpu.major}.{gpu.minor}"
        facts["processors"] = gpu.multi_processor_count
        facts["memory"] = gpu.total_memory
    return facts


def draft_files(engine: LLM, node: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of every file that drafts come from, by name."""
    algorithm: type[Speculator] = target_class(node["_target_"])
    files = algorithm.files(make_config(algorithm, node, "spec"), engine.shape)
    return {path.name: sha256_of(path) for path in files}
