"""The one error type that a user of Syncless can cause; everything else is a bug.

Knows nothing about what went wrong: whoever raises it writes the sentence.
"""

from hydra.errors import CompactHydraException


class UserError(CompactHydraException):
    """A mistake that the user can mend: printed as its message alone, exit code 1."""


class InternalError(RuntimeError):
    """A broken promise inside the engine; the message names who broke or who asked."""
