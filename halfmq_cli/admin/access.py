"""`halfmq admin access`: rules, grant, revoke, quotas, quota, audit."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from client_core.admin import AuditOutcome, Quota
from halfmq_cli.admin.command import command
from halfmq_cli.admin.ending import REFUSED, Ended
from halfmq_cli.admin.output import Column, Listing
from halfmq_cli.admin.plain import precise, time_of
from halfmq_cli.admin.session import Session  # noqa: TC001 - the decorator reads it
from halfmq_cli.admin.values import choice_of, limit_of, moment_of

if TYPE_CHECKING:
    from client_core.admin import AccessRule, AuditRecord

LIMITS = [each.name for each in fields(Quota) if each.name not in {"tenant", "set_at", "set_by"}]
"""The limits of a quota, in the order of their options."""

RULES: list[Column[AccessRule]] = [
    Column("rule", lambda rule: str(rule.rule_id), right=True),
    Column("effect", lambda rule: "deny" if rule.deny else "allow"),
    Column("subject", lambda rule: rule.subject),
    Column("actions", lambda rule: ", ".join(rule.actions)),
    Column("kind", lambda rule: rule.kind),
    Column("pattern", lambda rule: rule.pattern),
    Column("from", lambda rule: ", ".join(rule.sources) or "anywhere"),
    Column("granted", lambda rule: time_of(rule.made_at)),
    Column("by", lambda rule: rule.made_by or "-"),
]
RECORDS: list[Column[AuditRecord]] = [
    Column("when", lambda record: precise(record.happened_at)),
    Column("outcome", lambda record: record.outcome.name.lower() if record.outcome is not None else "-"),
    Column("principal", lambda record: record.principal or "-"),
    Column("address", lambda record: record.address or "-"),
    Column("call", lambda record: record.call),
    Column("resource", lambda record: record.resource or "-"),
    Column("times", lambda record: str(record.times), right=True),
    Column("detail", lambda record: record.detail or "-"),
]


def quota_columns() -> list[Column[Quota]]:
    """The columns of a list of quotas."""
    limits = [Column(name.replace("_", " "), _limit(name), right=True) for name in LIMITS]
    return [Column("tenant", lambda quota: quota.tenant), *limits]


def _limit(name: str):  # type: ignore[no-untyped-def] # noqa: ANN202
    return lambda quota: str(getattr(quota, name) or "-")


@command(watches=True)
def rules(session: Session) -> None:
    """List all rules."""
    session.show(Listing(RULES, session.admin.list_access_rules, "there are no rules"))


@command()
def grant(
    session: Session,
    subject: Annotated[str, typer.Argument(help="user:name, user:* for everybody who is known, or role:name.")],
    rights: Annotated[str, typer.Argument(help="Such as produce, or produce,consume.")],
    kind: Annotated[str, typer.Argument(help="topic, group, sink, cluster, or * for all.")],
    pattern: Annotated[str, typer.Argument(help="A name, the beginning of one with * behind it, or *.")],
    deny: Annotated[bool, typer.Option("--deny", help="Deny it. [allow it]")] = False,
    source: Annotated[list[str] | None, typer.Option(help="Only from this network; may be repeated.")] = None,
) -> None:
    """Add a rule; all brokers on the database know it within a second."""
    made = session.admin.grant_access(subject, rights.split(","), kind, pattern, deny=deny, sources=source or ())
    session.show(Listing(RULES, lambda: [made], ""))


@command()
def revoke(
    session: Session,
    rule_ids: Annotated[list[int], typer.Argument(min=1, help="Numbers of rules, as `rules` lists them.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove rules, and print those that were there."""
    session.ask(f"remove {'rule' if len(rule_ids) == 1 else 'rules'} {', '.join(map(str, rule_ids))}", yes=yes)
    removed = session.admin.revoke_access(rule_ids)
    session.show(Listing(RULES, lambda: removed, "nothing was removed"))
    if missing := sorted(set(rule_ids) - {each.rule_id for each in removed}):
        listed = ", ".join(map(str, missing))
        raise Ended(REFUSED, f"no rule has the number {listed}; `halfmq admin access rules` lists them")


@command(watches=True)
def quotas(session: Session) -> None:
    """List what tenants may use."""
    session.show(Listing(quota_columns(), session.admin.list_quotas, "there are no quotas"))


@command()
def quota(
    session: Session,
    tenant: Annotated[str, typer.Argument(help="The tenant, or * for each one without a quota of its own.")],
    messages_per_second: Annotated[int, typer.Option(help="That it may send, to each broker; 0: any number.")] = 0,
    bytes_per_second: Annotated[int, typer.Option(help="Of its requests that send, to each broker; 0: any.")] = 0,
    topics: Annotated[int, typer.Option(help="Topics; 0: any number.")] = 0,
    groups: Annotated[int, typer.Option(help="Groups of consumers and of producers; 0: any number.")] = 0,
    retained_bytes: Annotated[int, typer.Option(help="Of the bodies in its topics; 0: any.")] = 0,
    streams: Annotated[int, typer.Option(help="Under way at each broker; 0: any number.")] = 0,
    pending_transactions: Annotated[int, typer.Option(help="Without a verdict; 0: any number.")] = 0,
    remove: Annotated[bool, typer.Option("--remove", help="Remove its quota.")] = False,
) -> None:
    """Set what a tenant may use, as a whole: limits that are not given are none."""
    limits = (messages_per_second, bytes_per_second, topics, groups, retained_bytes, streams, pending_transactions)
    if remove == any(limits):
        raise Ended(2, "--remove: or at least one limit says what its quota is: give one of them")
    made = session.admin.set_quota(Quota(tenant, *limits))
    if remove:
        session.done({"tenant": tenant, "removed": True}, f"removed the quota of {tenant}")
    else:
        session.show(Listing(quota_columns(), lambda: [made], ""))


@command(watches=True)
def audit(
    session: Session,
    principal: Annotated[str | None, typer.Option(help="Only those of this one.")] = None,
    call: Annotated[str | None, typer.Option(help="Only of this call, such as AdminService/DeleteTopic.")] = None,
    resource: Annotated[str | None, typer.Option(help="Only about this, such as 'topic orders'.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only with this outcome: allowed, failed, denied or unauthenticated.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only from this time on, or so long ago, such as 2h.")] = None,
    until: Annotated[str | None, typer.Option(help="Only before this time.")] = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="The oldest first. [the newest]")] = False,
    limit: Annotated[int, typer.Option(help="Records at most; 0: all.")] = 100,
) -> None:
    """Show the records of who did what, refusals included."""
    start, end = moment_of("--since", since), moment_of("--until", until)
    wanted = choice_of("--outcome", outcome, AuditOutcome)
    session.show(
        Listing(
            RECORDS,
            lambda: session.admin.list_audit_records(
                principal=principal,
                call=call,
                resource=resource,
                outcome=wanted,
                since=start,
                until=end,
                oldest_first=oldest_first,
            ),
            "no record matches",
            limit=limit_of("--limit", limit),
        )
    )
