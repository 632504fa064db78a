"""The rope scalings that are known, and what each needs. Free of torch; the arithmetic is in rope.py."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import UserError

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "factors": ("factors",),  # divisors given one by one, as GGUF files store the Llama 3 scaling
}


def scaling_kind(scaling: Mapping[str, object]) -> str:
    """The name of a checkpoint's scaling; "default" for none."""
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def check_scaling(scaling: Mapping[str, object], where: str) -> None:
    """Raise UserError for a scaling that is not known or lacks a number."""
    kind = scaling_kind(scaling)
    if kind not in NEEDED:
        known = ", ".join(name for name in NEEDED if name != "factors")
        raise UserError(
            f"{where} asks for the rope scaling {kind!r}, which is not supported; supported are {known}"
        )
    absent = [name for name in NEEDED[kind] if scaling.get(name) is None]
    if absent:
        raise UserError(f"{where}: the rope scaling {kind!r} lacks {', '.join(absent)}")
