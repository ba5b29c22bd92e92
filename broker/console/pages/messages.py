"""Messages: looked up by id, key, time or position; one with its content and what happened to it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from broker.console.fields import LARGEST_QUEUE, filter_of, number_of, time_of
from broker.console.rendering import LONG
from broker.console.visit import PAGE
from halfmq.v1 import query_pb2, transaction_pb2

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


async def messages(visit: Visit) -> Response:
    """The form to look messages up, and what it finds."""
    if own := visit.query("id"):
        return visit.redirect(f"/messages/{quote(own, safe='')}")
    topic = visit.query("topic")
    if not topic:
        return await visit.page("messages.html", title="Messages", found=None, next_page="")
    request = query_pb2.FindMessagesRequest(
        topic=topic,
        key=visit.query("key"),
        until=time_of(visit.query("until"), "until"),
        queue=number_of(visit.query("queue"), "queue", LARGEST_QUEUE),
        offset=number_of(visit.query("offset"), "offset") or 0,
        filter=filter_of(visit.query("tags"), visit.query("sql")),
        page_size=PAGE,
        page_token=visit.query("page_token"),
    )
    if since := time_of(visit.query("from"), "from"):
        # "from" is a keyword of Python.
        getattr(request, "from").CopyFrom(since)
    found = await visit.call("QueryService/FindMessages", request)
    following = visit.next_page(found.next_page_token)
    return await visit.page("messages.html", title="Messages", found=found.messages, next_page=following)


async def message(visit: Visit) -> Response:
    """One message."""
    own = visit.path("message_id")
    found = await visit.call("QueryService/GetMessage", query_pb2.GetMessageRequest(message_id=own))
    events = await visit.call("QueryService/GetTimeline", query_pb2.GetTimelineRequest(message_id=own))
    content = found.message if found.HasField("message") else found.waiting
    return await visit.page(
        "message.html",
        title=f"Message {own}",
        message_id=own,
        found=found,
        content=content,
        stored=found.HasField("message"),
        transaction_id=own.partition(".")[0],
        cut=len(content.body) > LONG,
        events=events.events,
        state_kind=transaction_pb2.TransactionState,
        event_kind=query_pb2.TimelineEventType,
        verdict_kind=transaction_pb2.CheckVerdict,
        source_kind=transaction_pb2.VerdictSource,
    )
