"""Brokers, connected clients, and who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.console.fields import choice_of, time_of
from broker.console.pages.overview import counted
from broker.console.visit import PAGE
from halfmq.v1 import access_pb2
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit

KINDS = {"": pb.CLIENT_KIND_UNSPECIFIED, "producers": pb.CLIENT_KIND_PRODUCER, "consumers": pb.CLIENT_KIND_CONSUMER}
OUTCOMES = {
    "": access_pb2.AUDIT_OUTCOME_UNSPECIFIED,
    "allowed": access_pb2.AUDIT_OUTCOME_ALLOWED,
    "failed": access_pb2.AUDIT_OUTCOME_FAILED,
    "denied": access_pb2.AUDIT_OUTCOME_DENIED,
    "unauthenticated": access_pb2.AUDIT_OUTCOME_UNAUTHENTICATED,
}
ORDERS = {"": False, "newest": False, "oldest": True}


async def brokers(visit: Visit) -> Response:
    """The brokers, and the database."""
    found = await visit.call("AdminService/ListBrokers", pb.ListBrokersRequest())
    whole = await counted(visit)
    pending = [each.oldest_prepared_at for each in (whole.pending if whole else ()) if each.prepared]
    return await visit.page(
        "brokers.html",
        title="Brokers",
        found=found.brokers,
        now=found.time,
        own=next((each for each in found.brokers if each.HasField("health")), None),
        whole=whole,
        oldest=min(pending, key=lambda time: (time.seconds, time.nanos), default=None),
    )


async def clients(visit: Visit) -> Response:
    """A page of connected clients."""
    request = pb.ListClientsRequest(
        kind=choice_of(visit.query("kind"), KINDS, "kind"),
        group=visit.query("group"),
        broker_id=visit.query("broker"),
        page_size=PAGE,
        page_token=visit.query("page_token"),
    )
    found = await visit.call("AdminService/ListClients", request)
    following = visit.next_page(found.next_page_token)
    return await visit.page(
        "clients.html", title="Clients", found=found.clients, next_page=following, kind=pb.ClientKind
    )


async def audit(visit: Visit) -> Response:
    """A page of records of who did what, the newest first unless the address says otherwise."""
    request = access_pb2.ListAuditRecordsRequest(
        principal=visit.query("principal"),
        call=visit.query("call"),
        resource=visit.query("resource"),
        outcome=choice_of(visit.query("outcome"), OUTCOMES, "outcome"),
        until=time_of(visit.query("until"), "until"),
        oldest_first=choice_of(visit.query("order"), ORDERS, "order"),
        page_size=PAGE,
        page_token=visit.query("page_token"),
    )
    if since := time_of(visit.query("from"), "from"):
        # "from" is a keyword of Python.
        getattr(request, "from").CopyFrom(since)
    found = await visit.call("AdminService/ListAuditRecords", request)
    following = visit.next_page(found.next_page_token)
    return await visit.page(
        "audit.html",
        title="Audit",
        found=found.records,
        next_page=following,
        outcomes=list(OUTCOMES)[1:],
        outcome=access_pb2.AuditOutcome,
    )
