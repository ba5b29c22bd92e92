"""Transactions: in doubt, parked and decided; one of them with all that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.console.fields import age_of, choice_of, time_of
from broker.console.rendering import MIDDLE
from broker.console.visit import PAGE
from broker.errors import BrokerError
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
SOURCES = {
    "": transaction_pb2.VERDICT_SOURCE_UNSPECIFIED,
    "producer": transaction_pb2.VERDICT_SOURCE_PRODUCER,
    "check": transaction_pb2.VERDICT_SOURCE_CHECK,
    "operator": transaction_pb2.VERDICT_SOURCE_OPERATOR,
    "send": transaction_pb2.VERDICT_SOURCE_SEND,
    "sink": transaction_pb2.VERDICT_SOURCE_SINK,
}
MOST_MESSAGES = 20
"""Messages of a transaction whose deliveries are shown on its page."""


async def transactions(visit: Visit) -> Response:
    """A page of transactions."""
    state, decided = choice_of(visit.query("state"), STATES, "state")
    request = pb.ListTransactionsRequest(
        state=state,
        decided=decided,
        producer_group=visit.query("group"),
        page_size=PAGE,
        page_token=visit.query("page_token"),
    )
    if decided:
        request.source = choice_of(visit.query("source"), SOURCES, "source")
        for name, target in (("from", request.decided_from), ("until", request.decided_until)):
            if time := time_of(visit.query(name), name):
                target.CopyFrom(time)
    else:
        request.topic = visit.query("topic")
    if seconds := age_of(visit.query("older"), "older"):
        request.older_than.FromSeconds(seconds)
    found = await visit.call("AdminService/ListTransactions", request)
    following = visit.next_page(found.next_page_token)
    return await visit.page(
        "transactions.html",
        title="Transactions",
        found=found.transactions,
        decided=decided,
        states=list(STATES)[1:],
        sources=list(SOURCES)[1:],
        state_kind=transaction_pb2.TransactionState,
        source_kind=transaction_pb2.VerdictSource,
        next_page=following,
        said=visit.said,
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
