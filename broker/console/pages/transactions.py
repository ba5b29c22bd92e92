"""Transactions: in doubt, parked and decided; one of them with all that is known; decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from broker.console.rendering import MIDDLE
from broker.console.visit import PAGE
from broker.errors import BrokerError, InvalidArgument
from halfmq.v1 import admin_pb2 as pb
from halfmq.v1 import query_pb2, transaction_pb2

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit

STATES = {
    "": (transaction_pb2.TRANSACTION_STATE_UNSPECIFIED, False),
    "prepared": (transaction_pb2.TRANSACTION_STATE_PREPARED, False),
    "parked": (transaction_pb2.TRANSACTION_STATE_PARKED, False),
    "decided": (transaction_pb2.TRANSACTION_STATE_UNSPECIFIED, True),
    "committed": (transaction_pb2.TRANSACTION_STATE_COMMITTED, True),
    "rolled-back": (transaction_pb2.TRANSACTION_STATE_ROLLED_BACK, True),
}
RESOLUTIONS = {
    "commit": pb.RESOLUTION_COMMIT,
    "rollback": pb.RESOLUTION_ROLLBACK,
    "check": pb.RESOLUTION_CHECK_AGAIN,
}
MOST_MESSAGES = 20
"""Messages of a transaction whose deliveries are shown on its page."""


async def transactions(visit: Visit) -> Response:
    """A page of transactions."""
    state, decided = STATES.get(visit.query("state"), STATES[""])
    request = pb.ListTransactionsRequest(
        state=state,
        decided=decided,
        producer_group=visit.query("group"),
        topic="" if decided else visit.query("topic"),
        page_size=PAGE,
        page_token=visit.query("page_token"),
    )
    if seconds := age_of(visit.query("older")):
        request.older_than.FromSeconds(seconds)
    found = await visit.call("AdminService/ListTransactions", request)
    following = visit.next_page(found.next_page_token)
    return await visit.page(
        "transactions.html",
        title="Transactions",
        found=found.transactions,
        decided=decided,
        states=list(STATES)[1:],
        state_kind=transaction_pb2.TransactionState,
        source_kind=transaction_pb2.VerdictSource,
        next_page=following,
    )


async def transaction(visit: Visit) -> Response:
    """Everything that is known of one."""
    own = visit.path("transaction_id")
    request = transaction_pb2.GetTransactionRequest(transaction_id=own)
    found = (await visit.call("TransactionService/GetTransaction", request)).transaction
    count = max(len(found.halves), len(found.op.released))
    ids = [own if position == 0 else f"{own}.{position}" for position in range(min(count, MOST_MESSAGES))]
    messages = [await _message(visit, each) for each in ids]
    return await visit.page(
        "transaction.html",
        title=f"Transaction {own}",
        found=found,
        messages=messages,
        count=count,
        halves=found.halves[:MOST_MESSAGES],
        shown=MIDDLE,
        state_kind=transaction_pb2.TransactionState,
        source_kind=transaction_pb2.VerdictSource,
        verdict_kind=transaction_pb2.CheckVerdict,
        event_kind=query_pb2.TimelineEventType,
        said=visit.said,
    )


async def _message(visit: Visit, message_id: str) -> tuple[str, Any, str]:
    """The events of a message, or why they are not shown."""
    try:
        request = query_pb2.GetTimelineRequest(message_id=message_id)
        found = await visit.call("QueryService/GetTimeline", request)
    except BrokerError as error:
        return message_id, [], error.message
    return message_id, found.events, ""


async def resolve(visit: Visit) -> Response:
    """Takes a decision on one."""
    own, fields = visit.path("transaction_id"), await visit.form()
    request = pb.ResolveTransactionRequest(
        transaction_id=own,
        resolution=resolution_of(str(fields.get("resolution", ""))),
        reason=str(fields.get("reason", "")),
        operator=str(fields.get("operator", "")),
    )
    done = await visit.call("AdminService/ResolveTransaction", request)
    state = transaction_pb2.TransactionState.Name(done.result.state).removeprefix("TRANSACTION_STATE_")
    return visit.redirect(f"/transactions/{quote(own, safe='')}", said=f"It is {state} now.")


async def resolve_many(visit: Visit) -> Response:
    """Counts those that match, or takes a decision on them."""
    fields = await visit.form()
    state, decided = STATES.get(str(fields.get("state", "")), STATES[""])
    if decided:
        raise InvalidArgument("Those with a verdict are decided.", field="state")
    request = pb.ResolveTransactionsRequest(
        state=state,
        producer_group=str(fields.get("group", "")),
        topic=str(fields.get("topic", "")),
        resolution=resolution_of(str(fields.get("resolution", ""))),
        reason=str(fields.get("reason", "")),
        operator=str(fields.get("operator", "")),
        dry_run="as_of" not in fields,
    )
    if seconds := age_of(str(fields.get("older", ""))):
        request.older_than.FromSeconds(seconds)
    if not request.dry_run:
        try:
            request.prepared_before.FromJsonString(str(fields["as_of"]))
        except ValueError:
            raise InvalidArgument("It is no time.", field="as_of") from None
    examples: list[Any] = []
    last = pb.ResolveTransactionsResponse()
    async for step in visit.stream("AdminService/ResolveTransactions", request):
        last = step
        examples = examples or list(step.examples)
    return await visit.page(
        "resolve_many.html",
        title="Resolve many transactions",
        fields={name: str(value) for name, value in fields.items()},
        last=last,
        as_of=last.as_of.ToJsonString(),
        examples=examples,
        dry_run=request.dry_run,
        state_kind=transaction_pb2.TransactionState,
    )


def resolution_of(text: str) -> pb.Resolution.ValueType:
    """The decision of a form.

    Raises:
        InvalidArgument: there is no such decision.
    """
    if text not in RESOLUTIONS:
        raise InvalidArgument("Commit, roll back, or check again.", field="resolution")
    return RESOLUTIONS[text]


def age_of(text: str) -> int:
    """Seconds of an age such as 30s, 5min, 2h or 1d; 0 if there is none.

    Raises:
        InvalidArgument: it is no age.
    """
    if not text:
        return 0
    number = text.rstrip("dhmins ").strip()
    unit = text[len(number) :].strip() or "s"
    sizes = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
    if not (number.isascii() and number.isdigit()) or len(number) > 9 or unit not in sizes:
        raise InvalidArgument("An age is such as 30s, 5min, 2h or 1d.", field="older")
    return int(number) * sizes[unit]
