"""Why a move does not begin, or does not go on."""

from __future__ import annotations

from enum import StrEnum, auto

from broker.errors import Refused


class Why(StrEnum):
    """Kinds of refusals; those that another process caused are MOVE_DECIDED and MOVE_GIVEN_UP."""

    NOT_THERE = auto()
    ALREADY_THERE = auto()
    NAME_TAKEN = auto()
    IN_SEVERAL_CELLS = auto()
    MOVING = auto()
    MOVED_APART = auto()
    TRANSACTIONS_APART = auto()
    SAME_ID = auto()
    TOO_MANY_NAMES = auto()
    TOO_MANY_ROWS = auto()
    FILLED_TOO_FAST = auto()
    COPY_DIFFERS = auto()
    MOVE_DECIDED = auto()
    MOVE_GIVEN_UP = auto()
    FAILED = auto()


class MoveRefused(Refused):
    """A step of a move is refused; nothing of that step was done."""

    def __init__(self, message: str, why: Why, *, field: str = "topic") -> None:
        """Takes the text for people, the kind, and the option at fault."""
        super().__init__(message, reason=why.name, field=field)
        self.why = why
