"""Rules about this machine: device, packages, and a distribution that would shadow ours."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from engine.facts import Facts
from engine.rules.base import Answer, Rule, first_problem, ok, unknown, violated


def foreign_kernels(facts: Facts) -> Answer:
    """A published distribution is called `kernels` too, and would take our package's place."""
    try:
        version = importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return ok("no other distribution is called kernels")
    return violated(
        f"the installed distribution kernels {version} hides this engine's package of the same name: "
        "pip uninstall kernels, or use a virtual environment of its own for syncless"
    )


def device(facts: Facts) -> Answer:
    """Whether the device that was asked for is there, as far as files tell."""
    known = facts.device
    if known.kind == "cpu":
        return ok(f"device={known.asked} runs on the CPU")
    if known.cuda_build is False:
        return violated(f"device={known.asked}: the installed torch was built without CUDA; use device=cpu")
    if known.gpus == 0:
        return violated(
            f"device={known.asked}: this machine shows no NVIDIA GPU; use device=cpu or device=auto"
        )
    if known.gpus is None:
        return unknown(f"device={known.asked}: torch decides when the engine is built")
    if known.index >= known.gpus:
        last = known.gpus - 1
        return violated(
            f"device={known.asked}: the GPUs of this machine end at cuda:{last}; use device=cuda:{last}"
        )
    return ok(f"device={known.asked} is one of {known.gpus} GPUs")


def packages(facts: Facts) -> Answer:
    """Optional packages that a chosen part declares in its class fact `requires`."""
    missing = [
        f"{facts.named(group)} needs the package {name}: pip install {name}, or choose another {group}"
        for group, part in facts.parts.items()
        for name in getattr(part.cls, "requires", ())
        if importlib.util.find_spec(name) is None
    ]
    return first_problem(missing, "every package that the chosen parts need is installed")


def mode_devices(facts: Facts) -> Answer:
    """Modes of execution that exist on one kind of device only."""
    kind = facts.device.kind
    wrong = [
        f"{facts.named(group)} runs on {' or '.join(allowed)}, and the device is {kind}; use {group}=none"
        for group in ("tbo", "pcg", "graph")
        if kind not in (allowed := facts.flag(group, "devices", (kind,)))
    ]
    return first_problem(wrong, f"tbo, pcg and graph can run on {kind}")


MACHINE_RULES = (
    Rule("foreign kernels", "no other distribution shadows ours", foreign_kernels),
    Rule("device", "the device exists", device),
    Rule("packages", "optional packages are installed", packages),
    Rule("mode devices", "tbo, pcg and graph fit the device", mode_devices),
)
