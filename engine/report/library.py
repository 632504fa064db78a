"""The plotting library that the page embeds, where it is installed. Knows nothing of the page."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from engine.errors import UserError

LIBRARY = "plotly"
MISSING = (
    f"report.html needs the plotting library {LIBRARY}, which is not installed: pip install {LIBRARY}, then "
    "python -m engine.report on this folder"
)


def missing() -> str:
    """Why there can be no page; nothing where there can. Imports nothing."""
    return "" if importlib.util.find_spec(LIBRARY) is not None else MISSING


def script() -> str:
    """The library for the browser, whole. UserError where it is not installed."""
    if missing():
        raise UserError(MISSING)
    offline: Any = importlib.import_module(f"{LIBRARY}.offline")
    return str(offline.get_plotlyjs())
