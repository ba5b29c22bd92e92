"""Access rules, quotas and audit records, to and from the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.domain.access import ANY, Action, rule_of
from broker.domain.tenancy import Quota
from broker.errors import InvalidArgument
from broker.ports.audit import AuditOutcome, AuditSearch
from broker.wire import times
from halfmq.v1 import access_pb2 as pb

if TYPE_CHECKING:
    from broker.domain.access import Rule
    from broker.ports.access import StoredQuota, StoredRule
    from broker.ports.audit import StoredAuditRecord


def rule_in(rule: pb.AccessRule) -> Rule:
    """A rule.

    Raises:
        InvalidArgument: names the field that is wrong.
    """
    try:
        return rule_of(rule.subject, rule.kind, rule.pattern, rule.actions, allow=not rule.deny, sources=rule.sources)
    except InvalidArgument as error:
        raise error.within("rule") from None


def rule_out(stored: StoredRule) -> pb.AccessRule:
    """The wire form of a rule."""
    rule = stored.rule
    return pb.AccessRule(
        rule_id=stored.rule_id,
        subject=rule.subject,
        actions=[action.name or "" for action in Action if action in rule.actions],
        kind=rule.kind or ANY,
        pattern=rule.pattern,
        deny=not rule.allow,
        sources=[str(network) for network in rule.sources],
        made_at=times.timestamp(stored.made_at),
        made_by=stored.made_by,
    )


def quota_in(quota: pb.Quota) -> Quota:
    """A quota."""
    return Quota(
        quota.tenant,
        quota.messages_per_second,
        quota.bytes_per_second,
        quota.topics,
        quota.groups,
        quota.retained_bytes,
        quota.streams,
        quota.pending_transactions,
    )


def quota_out(stored: StoredQuota) -> pb.Quota:
    """The wire form of a quota."""
    quota = stored.quota
    return pb.Quota(
        tenant=quota.tenant,
        messages_per_second=quota.messages_per_second,
        bytes_per_second=quota.bytes_per_second,
        topics=quota.topics,
        groups=quota.groups,
        retained_bytes=quota.retained_bytes,
        streams=quota.streams,
        pending_transactions=quota.pending_transactions,
        set_at=times.timestamp(stored.set_at),
        set_by=stored.set_by,
    )


def search_in(request: pb.ListAuditRecordsRequest) -> AuditSearch:
    """Which records are wanted.

    Raises:
        InvalidArgument: names the field that is wrong.
    """
    outcome = None
    if request.outcome:
        try:
            outcome = AuditOutcome(request.outcome)
        except ValueError:
            raise InvalidArgument(f"There is no outcome {request.outcome}.", field="outcome") from None
    # "from" is a keyword of Python.
    since = getattr(request, "from") if request.HasField("from") else None
    return AuditSearch(
        principal=request.principal,
        call=request.call,
        resource=request.resource,
        outcome=outcome,
        since=None if since is None else times.micros_of_time(since, "from"),
        until=times.micros_of_time(request.until, "until") if request.HasField("until") else None,
        oldest_first=request.oldest_first,
    )


def record_out(stored: StoredAuditRecord) -> pb.AuditRecord:
    """The wire form of a record."""
    record = stored.record
    return pb.AuditRecord(
        audit_id=stored.audit_id,
        happened_at=times.timestamp(stored.happened_at),
        broker=stored.broker_id,
        principal=record.principal,
        address=record.address,
        call=record.call,
        action=record.action,
        resource=record.resource,
        outcome=cast("pb.AuditOutcome.ValueType", int(record.outcome)),
        times=record.times,
        detail=record.detail,
    )
