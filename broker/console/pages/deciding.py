"""Decisions on transactions: on one, and on all that match, after they were counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from broker.console.fields import age_of, choice_of, time_of
from broker.console.pages.transactions import STATES
from broker.errors import InvalidArgument
from halfmq.v1 import admin_pb2 as pb
from halfmq.v1 import transaction_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import Response

    from broker.console.visit import Visit

RESOLUTIONS = {
    "commit": pb.RESOLUTION_COMMIT,
    "rollback": pb.RESOLUTION_ROLLBACK,
    "check": pb.RESOLUTION_CHECK_AGAIN,
}
FILTER = ("state", "group", "topic", "older", "resolution")
"""What says which ones are decided, and how."""


async def resolve(visit: Visit) -> Response:
    """Takes a decision on one."""
    own, fields = visit.path("transaction_id"), await visit.form()
    request = pb.ResolveTransactionRequest(
        transaction_id=own,
        resolution=choice_of(str(fields.get("resolution", "")), RESOLUTIONS, "resolution"),
        reason=str(fields.get("reason", "")),
        operator=str(fields.get("operator", "")),
    )
    done = await visit.call("AdminService/ResolveTransaction", request)
    state = transaction_pb2.TransactionState.Name(done.result.state).removeprefix("TRANSACTION_STATE_")
    return visit.redirect(f"/transactions/{quote(own, safe='')}", said=f"It is {state} now.")


async def count_many(visit: Visit) -> Response:
    """Counts those that match a filter, and offers to decide them; changes nothing."""
    fields = {name: visit.query(name) for name in FILTER}
    request = _resolving(fields)
    request.dry_run = True
    examples: list[Any] = []
    last = pb.ResolveTransactionsResponse()
    async for step in visit.stream("AdminService/ResolveTransactions", request):
        last = step
        examples = examples or list(step.examples)
    return await visit.page(
        "resolve_many.html",
        title="Resolve many transactions",
        fields=fields,
        last=last,
        prepared_before=last.as_of.ToJsonString(),
        examples=examples,
        state_kind=transaction_pb2.TransactionState,
    )


async def resolve_many(visit: Visit) -> Response:
    """Takes a decision on those that match and were there when they were counted."""
    form = await visit.form()
    fields = {name: str(form.get(name, "")) for name in FILTER}
    request = _resolving(fields)
    request.reason, request.operator = str(form.get("reason", "")), str(form.get("operator", ""))
    counted_at = time_of(str(form.get("prepared_before", "")), "prepared_before")
    if counted_at is None:
        raise InvalidArgument("Count them first: only what was there by then is decided.", field="prepared_before")
    request.prepared_before.CopyFrom(counted_at)
    last = pb.ResolveTransactionsResponse()
    async for step in visit.stream("AdminService/ResolveTransactions", request):
        last = step
    del fields["resolution"]
    return visit.redirect(
        "/transactions",
        said=f"{last.resolved} of {last.matched} were resolved; {last.left} had been decided by others meanwhile.",
        **fields,
    )


def _resolving(fields: Mapping[str, str]) -> pb.ResolveTransactionsRequest:
    """The request for a decision on those that match, without a reason and a bound.

    Raises:
        InvalidArgument: a filter says nothing, or matches what is decided.
    """
    state, decided = choice_of(fields["state"], STATES, "state")
    if decided:
        raise InvalidArgument("Those with a verdict are decided.", field="state")
    request = pb.ResolveTransactionsRequest(
        state=state,
        producer_group=fields["group"],
        topic=fields["topic"],
        resolution=choice_of(fields["resolution"], RESOLUTIONS, "resolution"),
    )
    if seconds := age_of(fields["older"], "older"):
        request.older_than.FromSeconds(seconds)
    return request
