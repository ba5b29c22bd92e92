"""Topics and their queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.console.visit import PAGE
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


async def topics(visit: Visit) -> Response:
    """A page of topics by name; `from` is where it begins."""
    request = pb.ListTopicsRequest(page_size=PAGE, page_token=visit.query("page_token") or visit.query("from"))
    found = await visit.call("AdminService/ListTopics", request)
    following = visit.next_page(found.next_page_token)
    return await visit.page("topics.html", title="Topics", found=found.topics, next_page=following)


async def topic(visit: Visit) -> Response:
    """One topic: settings, queues, and the groups that read it."""
    name = visit.path("name")
    found = await visit.call("AdminService/DescribeTopic", pb.DescribeTopicRequest(topic=name))
    request = pb.ListGroupLagRequest(topic=name, page_size=PAGE, page_token=visit.query("page_token"))
    lags = await visit.call("AdminService/ListGroupLag", request)
    return await visit.page(
        "topic.html",
        title=f"Topic {name}",
        found=found,
        lags=lags.groups,
        next_page=visit.next_page(lags.next_page_token),
        compression=pb.Compression,
    )
