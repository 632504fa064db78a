"""For all tests: log handlers that one of them adds end with it; Ctrl-C is heard, also in the background."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that starts tests with `&` has it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)

Handlers = dict[logging.Logger, list[logging.Handler]]


@pytest.fixture(autouse=True)
def _log_handlers_as_they_were() -> Iterator[None]:
    """What is left behind would write to a closed stream in the middle of another test."""
    before, level = _handlers(), logging.getLogger().level
    yield
    for logger, now in _handlers().items():
        for handler in now:
            if handler not in before.get(logger, ()):
                logger.removeHandler(handler)
    logging.getLogger().setLevel(level)


def _handlers() -> Handlers:
    known = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    return {one: list(one.handlers) for one in known if isinstance(one, logging.Logger) and one.handlers}
