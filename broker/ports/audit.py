"""Records of who did what: the storage's port, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class AuditOutcome(IntEnum):
    """What came of a call; numbers as on the wire."""

    ALLOWED = 1
    FAILED = 2
    DENIED = 3
    UNAUTHENTICATED = 4


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Who did what from where.

    Attributes:
        principal: who; empty if nobody who is known.
        address: where the call came from; empty if it was done in the database.
        call: what was called, such as `AdminService/DeleteTopic`.
        action: that it is, such as `DELETE`.
        resource: on what, such as `topic orders`.
        outcome: what came of it.
        times: equal refusals that were merged; otherwise 1.
        detail: the request as JSON, or why it failed.
    """

    principal: str
    address: str
    call: str
    action: str
    resource: str
    outcome: AuditOutcome
    times: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StoredAuditRecord:
    """A record with its number, its time (microseconds), and the name of the broker that wrote it."""

    audit_id: int
    happened_at: int
    broker_id: str
    record: AuditRecord


@dataclass(frozen=True, slots=True)
class AuditSearch:
    """Which records; what is empty or None is not looked at.

    Attributes:
        principal, call, resource, outcome: those of the record.
        since, until: times in microseconds.
        after: continues a page behind this number; 0: the first page.
        oldest_first: otherwise the newest come first.
        limit: most records of a page.
    """

    principal: str = ""
    call: str = ""
    resource: str = ""
    outcome: AuditOutcome | None = None
    since: int | None = None
    until: int | None = None
    after: int = 0
    oldest_first: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some records, and the number behind which to continue; None: there are no more."""

    entries: list[StoredAuditRecord]
    following: int | None


class AuditStore(Protocol):
    """Records are appended and read; only retention deletes them."""

    async def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Appends records; they are durable then."""
        ...

    async def audit_records(self, search: AuditSearch) -> AuditPage:
        """Some records; of a limited number, so that there may be few, even none, although others follow."""
        ...
