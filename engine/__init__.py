"""Syncless: a config-composed LLM inference engine.

`from engine import LLM, SamplingParams` is the Python API; both load on first use, so importing this
package costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.llm import LLM as LLM
    from engine.params import SamplingParams as SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from engine.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
