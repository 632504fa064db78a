"""How a composite backend combines what its children declare. Knows facts and no backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TypeVar

from backends.base import AttentionBackend, BackendFacts
from engine.batch import HostLens

T = TypeVar("T")
_ORDER = (HostLens.NONE, HostLens.BOUND, HostLens.EXACT)


def neediest(needs: Iterable[HostLens]) -> HostLens:
    """What the one that reads most reads."""
    return max(needs, key=_ORDER.index)


def common(first: tuple[T, ...] | None, second: tuple[T, ...] | None) -> tuple[T, ...] | None:
    """What both hold; None stands for anything."""
    if first is None or second is None:
        return second if first is None else first
    return tuple(item for item in first if item in second)


def common_dtypes(
    first: Mapping[str, tuple[str, ...]], second: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Devices of both, each with the dtypes of both."""
    return {
        device: common(names, second[device]) or () for device, names in first.items() if device in second
    }


def all_of(name: str, children: Iterable[BackendFacts]) -> BackendFacts:
    """Facts of a composite whose passes may go to any child: what every one of them can."""
    return reduce(lambda a, b: _both(name, a, b), children)


def _both(name: str, a: BackendFacts, b: BackendFacts) -> BackendFacts:
    return BackendFacts(
        name=name,
        host_lens=neediest((a.host_lens, b.host_lens)),
        tree_mask=a.tree_mask and b.tree_mask,
        device_metadata=a.device_metadata and b.device_metadata,
        page_sizes=common(a.page_sizes, b.page_sizes),
        dtypes=common_dtypes(a.dtypes, b.dtypes),
        max_verify_width=min(a.max_verify_width, b.max_verify_width),
        step_kernels=a.step_kernels if a.step_kernels == b.step_kernels else "torch",
        plans_outside=a.plans_outside and b.plans_outside,
        own_products=a.own_products or b.own_products,
    )


def declare(composite: AttentionBackend, facts: BackendFacts) -> None:
    """Give an instance its own facts. They are class variables by declaration; these stand over them."""
    vars(composite).update({key: value for key, value in vars(facts).items() if key != "name"})
