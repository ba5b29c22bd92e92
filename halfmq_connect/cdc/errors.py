"""What ends or interrupts a subscription to a binary log.

CdcError
├── WrongSetting       the file, the server's settings or the user's rights do not allow it; nothing was begun
├── CannotFollow       the log has something that cannot be published, or lacks what is needed; nothing was skipped
│   └── MessageRefused the broker refuses a message
├── TakenOver          another process subscribed under the same name
└── Interrupted        a server or the broker is away: tried again from the recorded position
"""

from __future__ import annotations

__all__ = ["CannotFollow", "CdcError", "Interrupted", "MessageRefused", "TakenOver", "WrongSetting"]


class CdcError(Exception):
    """Base of the errors of a subscription; the text says what to do."""


class WrongSetting(CdcError):
    """A setting that cannot work.

    Attributes:
        field: The setting: of the file, such as `table[0].topic`, or of the server, such as `binlog_format`.
    """

    def __init__(self, message: str, *, field: str) -> None:
        """Takes the text and the setting at fault."""
        super().__init__(message)
        self.field = field


class CannotFollow(CdcError):
    """The log cannot be followed any further without losing something."""


class MessageRefused(CannotFollow):
    """The broker refuses a message.

    Attributes:
        transaction: Index of its transaction among those of the request.
    """

    def __init__(self, message: str, transaction: int) -> None:
        """Takes the text and the transaction's index."""
        super().__init__(message)
        self.transaction = transaction


class TakenOver(CdcError):
    """Another process subscribed under the same name; this one has published nothing since."""


class Interrupted(CdcError):
    """A connection was lost, or a server does not answer."""
