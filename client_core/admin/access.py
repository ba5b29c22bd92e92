"""Access rules, quotas of tenants, and the record of who did what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from client_core.admin.inspection import AsyncInspection
from client_core.arguments import check_kind, check_number, check_text
from client_core.times import as_timestamp, read_time
from halfmq.v1 import access_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

__all__ = ["AccessRule", "AsyncAccess", "AuditOutcome", "AuditRecord", "Quota"]

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class AccessRule:
    """Allows or denies actions on resources.

    Attributes:
        rule_id: Its number, which is never used again.
        subject: ``user:name``, ``user:*`` for everybody who is known, or ``role:name``.
        actions: Such as ``PUB``.
        kind: Kind of the resource: ``topic``, ``group``, ``sink``, ``cluster`` or ``*``.
        pattern: Its name, the beginning of one with ``*`` behind it, or ``*``.
        deny: Denies instead of allowing.
        sources: Networks that a call has to come from; empty: any.
        made_at: When it was granted (database time, UTC).
        made_by: Who granted it; empty if it was done in the database.
    """

    rule_id: int
    subject: str
    actions: tuple[str, ...]
    kind: str
    pattern: str
    deny: bool
    sources: tuple[str, ...]
    made_at: datetime | None
    made_by: str

    @classmethod
    def of(cls, rule: pb.AccessRule) -> AccessRule:
        """Reads the wire form."""
        return cls(
            rule_id=rule.rule_id,
            subject=rule.subject,
            actions=tuple(rule.actions),
            kind=rule.kind,
            pattern=rule.pattern,
            deny=rule.deny,
            sources=tuple(rule.sources),
            made_at=read_time(rule.made_at),
            made_by=rule.made_by,
        )


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may use; 0: without limit.

    Attributes:
        tenant: Its name; ``*`` for each tenant without a quota of its own.
        messages_per_second: That its clients may send, to each broker.
        bytes_per_second: Of their requests that send, to each broker.
        topics: Without dead letter topics.
        groups: Of consumers, and of producers with half messages.
        retained_bytes: Of the bodies in its topics.
        streams: Under way at each broker.
        pending_transactions: Without a verdict.
        set_at: When it was set (database time, UTC).
        set_by: Who set it.
    """

    tenant: str
    messages_per_second: int = 0
    bytes_per_second: int = 0
    topics: int = 0
    groups: int = 0
    retained_bytes: int = 0
    streams: int = 0
    pending_transactions: int = 0
    set_at: datetime | None = None
    set_by: str = ""

    @classmethod
    def of(cls, quota: pb.Quota) -> Quota:
        """Reads the wire form."""
        return cls(
            tenant=quota.tenant,
            messages_per_second=quota.messages_per_second,
            bytes_per_second=quota.bytes_per_second,
            topics=quota.topics,
            groups=quota.groups,
            retained_bytes=quota.retained_bytes,
            streams=quota.streams,
            pending_transactions=quota.pending_transactions,
            set_at=read_time(quota.set_at),
            set_by=quota.set_by,
        )


class AuditOutcome(IntEnum):
    """What came of a call."""

    ALLOWED = pb.AUDIT_OUTCOME_ALLOWED
    """It was allowed, and then run. If that failed, there is another record."""
    FAILED = pb.AUDIT_OUTCOME_FAILED
    """It was allowed, and failed."""
    DENIED = pb.AUDIT_OUTCOME_DENIED
    """No rule allows it."""
    UNAUTHENTICATED = pb.AUDIT_OUTCOME_UNAUTHENTICATED
    """Whoever made it is not known."""


_OUTCOMES: dict[int, AuditOutcome] = {each.value: each for each in AuditOutcome}


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Who did what from where.

    Attributes:
        audit_id: Its number.
        happened_at: When (database time, UTC); of merged refusals: when the last one was.
        broker: Name of the broker.
        principal: Who; empty if nobody who is known.
        address: Address that the call came from; empty if it was done in the database.
        call: What was called, such as ``AdminService/DeleteTopic``.
        action: The action that it is, such as ``DELETE``.
        resource: On what, such as ``topic orders``.
        outcome: What came of it; None: something that this version does not know.
        times: How many equal refusals were merged; otherwise 1.
        detail: The request as JSON, or why it failed.
    """

    audit_id: int
    happened_at: datetime | None
    broker: str
    principal: str
    address: str
    call: str
    action: str
    resource: str
    outcome: AuditOutcome | None
    times: int
    detail: str

    @classmethod
    def of(cls, record: pb.AuditRecord) -> AuditRecord:
        """Reads the wire form."""
        return cls(
            audit_id=record.audit_id,
            happened_at=read_time(record.happened_at),
            broker=record.broker,
            principal=record.principal,
            address=record.address,
            call=record.call,
            action=record.action,
            resource=record.resource,
            outcome=_OUTCOMES.get(record.outcome),
            times=record.times,
            detail=record.detail,
        )


class AsyncAccess(AsyncInspection):
    """The part of AsyncAdmin that is about access."""

    async def grant_access(
        self,
        subject: str,
        actions: Sequence[str],
        kind: str,
        pattern: str,
        *,
        deny: bool = False,
        sources: Sequence[str] = (),
        replace: bool = False,
    ) -> AccessRule:
        """Adds a rule; one that is the same but for its actions is replaced by one with the actions of both.

        Args:
            subject: Whom it is about: ``user:name``, ``user:*`` for everybody who is known, or ``role:name``.
            actions: Rights or actions, such as ``produce`` or ``PUB``.
            kind: Kind of the resource: ``topic``, ``group``, ``sink``, ``cluster``, or ``*`` for all.
            pattern: Its name, the beginning of one with ``*`` behind it, or ``*``.
            deny: Deny instead of allowing.
            sources: Networks that the call has to come from, such as ``10.1.0.0/16``; empty: any.
            replace: Leave such a rule only these actions, at once.

        Returns:
            The rule as it is now; all brokers know it within a second.
        """
        rule = pb.AccessRule(subject=subject, actions=actions, kind=kind, pattern=pattern, deny=deny, sources=sources)
        request = pb.GrantAccessRequest(rule=rule, replace=replace)
        return AccessRule.of((await self._link.call(lambda broker: broker.admin.GrantAccess, request)).rule)

    async def revoke_access(self, rule_ids: Sequence[int]) -> list[AccessRule]:
        """Removes rules by their numbers; returns those that were there."""
        request = pb.RevokeAccessRequest(rule_ids=rule_ids)
        gone = await self._link.call(lambda broker: broker.admin.RevokeAccess, request)
        return [AccessRule.of(rule) for rule in gone.rules]

    async def list_access_rules(self) -> list[AccessRule]:
        """Returns all rules, in the order in which they were granted."""
        found = await self._link.call(lambda broker: broker.admin.ListAccessRules, pb.ListAccessRulesRequest())
        return [AccessRule.of(rule) for rule in found.rules]

    async def set_quota(self, quota: Quota) -> Quota:
        """Sets what a tenant may use, as a whole; a quota without any limit removes it."""
        check_kind("quota", quota, Quota)
        wire = pb.Quota(
            tenant=quota.tenant,
            messages_per_second=_limit("messages_per_second", quota.messages_per_second),
            bytes_per_second=_limit("bytes_per_second", quota.bytes_per_second),
            topics=_limit("topics", quota.topics),
            groups=_limit("groups", quota.groups),
            retained_bytes=_limit("retained_bytes", quota.retained_bytes),
            streams=_limit("streams", quota.streams),
            pending_transactions=_limit("pending_transactions", quota.pending_transactions),
        )
        request = pb.SetQuotaRequest(quota=wire)
        return Quota.of((await self._link.call(lambda broker: broker.admin.SetQuota, request)).quota)

    async def list_quotas(self) -> list[Quota]:
        """Returns all quotas, by tenant."""
        found = await self._link.call(lambda broker: broker.admin.ListQuotas, pb.ListQuotasRequest())
        return [Quota.of(quota) for quota in found.quotas]

    def list_audit_records(
        self,
        *,
        principal: str | None = None,
        call: str | None = None,
        resource: str | None = None,
        outcome: AuditOutcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        oldest_first: bool = False,
    ) -> AsyncGenerator[AuditRecord, None]:
        """Iterates over records of who did what, the newest first; what is None is not looked at.

        Args:
            principal: Only those of this one.
            call: Only those of this call, such as ``AdminService/DeleteTopic``.
            resource: Only those about this, such as ``topic orders``.
            outcome: Only those with this outcome.
            since: Only those from this time on; with its time zone.
            until: Only those before this time; with its time zone.
            oldest_first: The oldest first instead.
        """
        request = pb.ListAuditRecordsRequest(page_size=_PAGE, oldest_first=oldest_first)
        for name, value in (("principal", principal), ("call", call), ("resource", resource)):
            if value is not None:
                check_text(name, value, "is what records are about")
                setattr(request, name, value)
        check_kind("outcome", outcome, AuditOutcome)
        if outcome is not None:
            request.outcome = pb.AuditOutcome.ValueType(outcome)
        if since is not None:
            # A Python keyword, so not accessible as an attribute.
            getattr(request, "from").CopyFrom(as_timestamp("since", since))
        if until is not None:
            request.until.CopyFrom(as_timestamp("until", until))
        return self._paged(
            request,
            lambda broker: broker.admin.ListAuditRecords,
            lambda page: [AuditRecord.of(record) for record in page.records],
        )


def _limit(name: str, value: int) -> int:
    return check_number(name, value, bits=62) or 0
