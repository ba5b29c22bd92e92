"""What can go wrong in the broker, as values that name the field and the remedy.

BrokerError
├── InvalidArgument          the request itself is wrong; repeating it cannot help
├── NotFound                 a topic, group, transaction or queue that does not exist
├── AlreadyExists            a name or an id that is taken
├── Refused                  right request, wrong moment
│   ├── VerdictConflict      the transaction has the opposite verdict, or is parked
│   └── StaleReceipt         the lease behind a receipt handle ended
├── Overloaded               too much is waiting; come back after `retry_after`
├── StorageUnavailable       the database cannot be reached or cannot write; come back later
│   └── RowsHeld             another session holds rows that are needed, for too long
├── StorageRejected          the database refused one item (a bug or a damaged table); its batch mates are fine
└── ConfigurationError       the broker cannot start like this

`reason` is a stable constant for programs, the text is for people. api/status.py maps the classes to gRPC codes.
"""

from __future__ import annotations

from typing import Self


class BrokerError(Exception):
    """Base of everything the broker refuses on purpose."""

    def __init__(self, message: str, *, reason: str, field: str = "") -> None:
        """Takes the text for people, the constant for programs, and the field at fault."""
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field

    def as_outcome(self) -> Self:
        """The error without the frames that it came through: kept among outcomes, it would keep all that is in them."""
        release(self)
        return self


def release(error: BaseException | None) -> None:
    """Has an error, and those behind it, let go of the frames that they came through, and of what is in those.

    A frame that keeps an error which came through it is a circle, and stays in memory until the garbage collector runs.
    """
    while error is not None:
        behind = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = behind


class InvalidArgument(BrokerError):
    """The request itself is wrong."""

    def __init__(
        self, message: str, *, field: str, reason: str = "INVALID_ARGUMENT", position: int | None = None
    ) -> None:
        """Names the field at fault, and where in its text the fault is: the character, from 1."""
        super().__init__(message, reason=reason, field=field)
        self.position = position

    def within(self, prefix: str) -> InvalidArgument:
        """The same error seen from the message that holds the field."""
        return InvalidArgument(self.message, field=f"{prefix}.{self.field}", reason=self.reason, position=self.position)


class NotFound(BrokerError):
    """Something named in the request does not exist."""


class AlreadyExists(BrokerError):
    """A name or an id is taken."""


class Refused(BrokerError):
    """The request is right, the moment is not."""


class VerdictConflict(Refused):
    """The transaction cannot take this verdict; `state` is the recorded one."""

    def __init__(self, message: str, *, state: int) -> None:
        """Takes the recorded state (a domain TransactionState)."""
        super().__init__(message, reason="VERDICT_CONFLICT", field="transaction_id")
        self.state = state


class StaleReceipt(Refused):
    """The lease behind a receipt handle ended."""

    def __init__(self, message: str, *, reason: str) -> None:
        """Takes RECEIPT_STALE (somebody else has the message) or RECEIPT_GONE (the message is settled)."""
        super().__init__(message, reason=reason, field="receipt_handle")


class Overloaded(BrokerError):
    """Too much is waiting already."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        """Takes the seconds after which a retry has a chance."""
        super().__init__(message, reason="OVERLOADED")
        self.retry_after = retry_after


class StorageUnavailable(BrokerError):
    """The database cannot be reached, or does not write."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        """Takes the seconds after which a retry has a chance."""
        super().__init__(message, reason="STORAGE_UNAVAILABLE")
        self.retry_after = retry_after


class RowsHeld(StorageUnavailable):
    """Another session holds rows that this needs; the database is there, and takes other work."""

    def __init__(self, message: str, *, waited: bool = False) -> None:
        """Takes whether it waited for them, in vain; otherwise it only asked."""
        super().__init__(message)
        self.waited = waited


class StorageRejected(BrokerError):
    """The database refused an item for a reason nobody foresaw."""

    def __init__(self, message: str) -> None:
        """Takes the database's own words."""
        super().__init__(message, reason="STORAGE_REJECTED")


class ConfigurationError(BrokerError):
    """The broker cannot start like this."""

    def __init__(self, message: str, *, field: str) -> None:
        """Names the setting and the remedy."""
        super().__init__(message, reason="CONFIGURATION", field=field)
