"""Errors of the broker, which name the field and the remedy.

BrokerError
├── InvalidArgument          the request itself is wrong; repeating it cannot help
├── NotFound                 a topic, group, transaction or queue that does not exist
├── AlreadyExists            a name or an id that is taken
├── Refused                  valid request, but not in the current state
│   ├── VerdictConflict      the transaction has the opposite verdict, or is parked
│   ├── StaleReceipt         the lease behind a receipt handle ended
│   └── OffsetLost           the offset is of a time that a restore of the database undid
├── Overloaded               too much is waiting; retry after `retry_after`
│   └── ClientOverloaded     of one client
├── StorageUnavailable       the database cannot be reached or cannot write; retry later
│   ├── CellAway             that of one of several cells
│   ├── Moved                what is asked for is moving to another cell, or was just now
│   └── RowsLocked           another session holds rows that are needed, for too long
├── StorageRejected          the database refused one item (a bug or a damaged table); the rest of the batch is fine
│   └── StoredBodyBroken     a compressed body in a table is damaged
├── Unauthenticated          who calls is not known
├── Denied                   who calls may not do this
└── ConfigurationError       the broker cannot start
    └── DatabaseReplaced     it cannot go on: the database was restored to an earlier state meanwhile

`reason` is a stable constant for programs, the text is for people. api/status.py maps the classes to gRPC codes.
"""

from __future__ import annotations

from typing import Self


class BrokerError(Exception):
    """Base of all intended errors of the broker."""

    def __init__(self, message: str, *, reason: str, field: str = "") -> None:
        """Takes the text for people, the constant for programs, and the field at fault."""
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field

    def as_outcome(self) -> Self:
        """The error without its traceback: an error kept as an outcome would keep the frames' variables alive."""
        release(self)
        return self


def release(error: BaseException | None) -> None:
    """Clears the tracebacks of an error and its causes.

    A frame that refers to an error whose traceback contains it is a reference cycle, and stays in memory until the
    garbage collector runs.
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
        """Takes the field at fault, and the position of the fault in its text (character, from 1)."""
        super().__init__(message, reason=reason, field=field)
        self.position = position

    def within(self, prefix: str) -> InvalidArgument:
        """The same error with the field prefixed by its message."""
        return InvalidArgument(self.message, field=f"{prefix}.{self.field}", reason=self.reason, position=self.position)


class NotFound(BrokerError):
    """Something named in the request does not exist."""


class AlreadyExists(BrokerError):
    """A name or an id is taken."""


class Refused(BrokerError):
    """The request is valid, but not in the current state."""


class BehindRefused(Refused):
    """A message is to be stored after one of its message group that is not stored."""

    def __init__(self) -> None:
        """The same for all messages."""
        super().__init__(
            "A message before it in its message group was refused; send it when that one is stored, or without it.",
            reason="BEHIND_REFUSED",
            field="message_group",
        )


class VerdictConflict(Refused):
    """The transaction cannot take this verdict; `state` is the recorded one."""

    def __init__(self, message: str, *, state: int) -> None:
        """Takes the recorded state (a domain TransactionState)."""
        super().__init__(message, reason="VERDICT_CONFLICT", field="transaction_id")
        self.state = state


class StaleReceipt(Refused):
    """The lease behind a receipt handle ended."""

    def __init__(self, message: str, *, reason: str) -> None:
        """Takes RECEIPT_STALE (another consumer has the message) or RECEIPT_GONE (the message is settled)."""
        super().__init__(message, reason=reason, field="receipt_handle")


class OffsetLost(Refused):
    """The offset is of a time that a restore of the database undid; `first` is the offset to go on from."""

    def __init__(self, topic: str, queue_no: int, offset: int, lost: tuple[int, int], field: str) -> None:
        """Takes the place, the lost offsets around it (the first one, and where the queue goes on), and the field."""
        ended, first = lost
        super().__init__(
            f"The database was restored to a moment when queue {queue_no} of {topic!r} ended at {ended}: what was read"
            f" from there up to {offset} is gone, unless it was sent again. Go on at {first}, which skips nothing that"
            " is there.",
            reason="OFFSET_LOST",
            field=field,
        )
        self.first = first


class Overloaded(BrokerError):
    """Too much is waiting already."""

    def __init__(self, message: str, *, retry_after: float, reason: str = "OVERLOADED") -> None:
        """Takes the seconds after which a retry may succeed; QUOTA_EXCEEDED: a tenant uses too much."""
        super().__init__(message, reason=reason)
        self.retry_after = retry_after


class ClientOverloaded(Overloaded):
    """One client has too much under way, not all together."""

    def __init__(self, what: str, most: int, retry_after: float, *, pause: float = 0.0) -> None:
        """Takes what, how many are allowed, the seconds after which a retry may succeed, and those to wait before."""
        super().__init__(
            f"You have {most} {what} under way here, and no more are taken from one client; come back a little later.",
            retry_after=retry_after,
        )
        self.pause = pause


class StorageUnavailable(BrokerError):
    """The database cannot be reached, or does not write."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        """Takes the seconds after which a retry may succeed."""
        super().__init__(message, reason="STORAGE_UNAVAILABLE")
        self.retry_after = retry_after


class Moved(StorageUnavailable):
    """What is asked for is moving to another cell, or has just been moved there."""

    def __init__(self, what: object) -> None:
        """Takes what it is, as in `topic 'orders'`."""
        BrokerError.__init__(
            self, f"The {what} is moving to another cell, or has just been moved there; come back.", reason="MOVED"
        )
        self.retry_after = 0.5


class CellAway(StorageUnavailable):
    """The database of one cell cannot be reached."""

    def __init__(self, name: str) -> None:
        """Takes the name of the cell."""
        super().__init__(f"The database of the cell {name!r} cannot be reached; others are served.")


class RowsLocked(StorageUnavailable):
    """Another session holds the needed rows; the database is reachable, and accepts other work."""

    def __init__(self, message: str, *, waited: bool = False) -> None:
        """Takes whether it waited for them; otherwise it did not wait."""
        super().__init__(message)
        self.waited = waited


class StorageRejected(BrokerError):
    """The database refused an item for an unexpected reason."""

    def __init__(self, message: str) -> None:
        """Takes the database's error text."""
        super().__init__(message, reason="STORAGE_REJECTED")


class StoredBodyBroken(StorageRejected):
    """The stored body of a message cannot be unpacked."""

    def __init__(self, message: str) -> None:
        """Takes a text that names the message."""
        BrokerError.__init__(self, message, reason="STORED_BODY_BROKEN")


class Unauthenticated(BrokerError):
    """Who calls is not known. The text is always the same: what was wrong is nothing for whoever it was."""

    def __init__(self) -> None:
        """Takes nothing."""
        super().__init__(
            "Show a token, a certificate or a signature that is accepted here; tokens go over TLS only.",
            reason="UNAUTHENTICATED",
        )


class Denied(BrokerError):
    """Who calls may not do this. The text is the same whether what it is about exists or not."""

    def __init__(self) -> None:
        """Takes nothing."""
        super().__init__("No rule allows this to you.", reason="PERMISSION_DENIED")


class ConfigurationError(BrokerError):
    """The broker cannot start with these settings."""

    def __init__(self, message: str, *, field: str) -> None:
        """Takes the setting and the remedy."""
        super().__init__(message, reason="CONFIGURATION", field=field)

    @classmethod
    def of_address(cls, address: str, error: OSError, *, field: str) -> ConfigurationError:
        """What a setting says of an address where nothing can listen, and why."""
        return cls(
            f"The address {address} cannot be used ({error.strerror or error}): is another process there, is it this"
            " machine's?",
            field=field,
        )


class DatabaseReplaced(ConfigurationError):
    """The database was restored to an earlier state while this broker ran."""

    def __init__(self, shown_url: str = "") -> None:
        """Takes the database for the text; without it, that was told before."""
        super().__init__(
            f"The database {shown_url or 'that was named above'} is in an earlier state than it was: it was restored,"
            " or a replica that lacks the latest transactions took its place. What this broker remembers is of another"
            " state. Stop all brokers, run `halfmq restored` for it unless that was done, then start them again.",
            field="database",
        )
