"""What computes products of few tokens, in words, before anything is built. Free of torch."""

from __future__ import annotations

from engine.devices import DeviceFacts, gpu_name
from engine.errors import UserError
from engine.kernel_choices.source import find
from engine.kernel_choices.table import INTERPRETER, Circumstances

LIBRARY = "torch's products and separate operations"


def described(setting: str, device: DeviceFacts, own_products: bool) -> str:
    """One clause. own_products: whether the attention backend's operations follow a table at all."""
    if not own_products:
        return f"{LIBRARY}: the attention backend follows no table"
    gpu = INTERPRETER if device.kind == "cpu" else gpu_name(device.index)
    if gpu is None:
        return f"kernels={setting}: the GPU's name is not known before the engine is built"
    try:
        found = find(setting, Circumstances.here(gpu))
    except UserError as error:
        return str(error)
    entries = found.table.entries.values()
    if not entries:
        return f"{LIBRARY}: {found.why}"
    own, cuda = sum(entry.plan is not None for entry in entries), sum(entry.in_cuda for entry in entries)
    some = f" ({cuda} in CUDA C++, if the start of the engine finds that it can be used)" if cuda else ""
    return f"{found.why}: own kernels at {own} of {len(entries)} measured places{some}, {LIBRARY} elsewhere"
