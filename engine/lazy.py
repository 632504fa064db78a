"""Deferred import of heavy modules, so that facts about a part can be read without torch.

A backport in spirit of PEP 810: the module is imported at the first attribute access. Use it in the
files that `_target_` names (their class facts feed help, rules and explain), nowhere else::

    if TYPE_CHECKING:
        import torch
    else:
        torch = lazy_import("torch")
"""

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        module = importlib.import_module(self.__name__)
        value = getattr(module, name)
        self.__dict__[name] = value  # next access takes the fast path
        return value


def lazy_import(name: str) -> Any:
    """Return a stand-in for module `name` (absolute) that imports it when first used."""
    return _LazyModule(name)
