"""Who reads exact sequence lengths on the host: one pure question over the injected parts.

Free of torch. Nothing else may force the host mirror: no mode, no loop, no name of an algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable

from backends.base import host_lens_of
from engine.batch import HostLens


def needs_cpu_seq_lens(
    speculator: object, backends: Iterable[tuple[str, object | None]]
) -> tuple[bool, tuple[str, ...]]:
    """(needed, caused by) over the instances; `backends` are (role, backend or None) of every slot.

    A None slot has no such forward and is skipped. A part that does not declare the flag counts as needing
    the lengths; a composite's instance answers for its children.
    """
    causes = [f"speculator ({_name(speculator)})"] if reads_host_lens(speculator) else []
    causes += [
        f"{role} attention ({_name(backend)})"
        for role, backend in backends
        if backend is not None and host_lens_of(backend) is HostLens.EXACT
    ]
    return bool(causes), tuple(causes)


def reads_host_lens(speculator: object) -> bool:
    """What a speculator (instance or class) declares; silence counts as True."""
    return getattr(speculator, "reads_cpu_seq_lens", True) is not False


def _name(part: object) -> str:
    return part.__name__ if isinstance(part, type) else type(part).__name__
