"""Classification of database errors."""

from __future__ import annotations

from enum import Enum, auto


class Failure(Enum):
    """Kinds of errors, the same for all databases."""

    RETRY = auto()
    """Rolled back by the database; the same work may succeed at once (deadlock, lock wait)."""
    LOST = auto()
    """The connection is lost; whether a COMMIT took effect is not known."""
    READ_ONLY = auto()
    """The server does not accept writes now; another one may."""
    FULL = auto()
    """No space left for the database."""
    DUPLICATE = auto()
    """A key exists."""
    OTHER = auto()
    """An error of the work itself."""
