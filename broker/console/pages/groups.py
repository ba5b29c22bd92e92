"""Consumer groups: their lag, their progress, pausing and seeking."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from broker.console.fields import LARGEST_QUEUE, number_of, position_of
from broker.console.visit import PAGE
from broker.errors import InvalidArgument
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


async def groups(visit: Visit) -> Response:
    """A page of groups by name, with their lag by topic."""
    token = visit.query("page_token") or visit.query("from")
    found = await visit.call(
        "AdminService/ListGroupLag",
        pb.ListGroupLagRequest(topic=visit.query("topic"), page_size=PAGE, page_token=token),
    )
    following = visit.next_page(found.next_page_token)
    return await visit.page("groups.html", title="Consumer groups", found=found.groups, next_page=following)


async def group(visit: Visit) -> Response:
    """One group: settings, progress, and its consumers."""
    name = visit.path("name")
    found = await visit.call("AdminService/DescribeGroup", pb.DescribeGroupRequest(group=name))
    request = pb.ListClientsRequest(kind=pb.CLIENT_KIND_CONSUMER, group=name, page_size=PAGE)
    clients = await visit.call("AdminService/ListClients", request)
    progress = found.progress[: 10 * PAGE]
    return await visit.page(
        "group.html",
        title=f"Consumer group {name}",
        found=found.group,
        progress=progress,
        left_out=len(found.progress) - len(progress),
        topics=sorted({each.topic for each in found.progress}),
        clients=clients.clients,
        mode=pb.GroupMode,
        policy=pb.ExhaustedPolicy,
        said=visit.said,
    )


async def pause(visit: Visit) -> Response:
    """Pauses or resumes a group."""
    name, fields = visit.path("name"), await visit.form()
    resume = fields.get("action") == "resume"
    request = pb.PauseGroupRequest(group=name, resume=resume, reason=str(fields.get("reason", "")))
    await visit.call("AdminService/PauseGroup", request)
    return visit.redirect(
        f"/groups/{quote(name, safe='')}", said="It is delivered to again." if resume else "It is paused."
    )


async def seek(visit: Visit) -> Response:
    """Moves a group to another position of a topic, or of one queue of it."""
    name, fields = visit.path("name"), await visit.form()
    queue = number_of(str(fields.get("queue", "")), "queue", LARGEST_QUEUE)
    to = position_of(str(fields.get("to", "")), "to")
    if to.HasField("offset") and queue is None:
        raise InvalidArgument("An offset is that of one queue: say which one.", field="queue")
    request = pb.SeekGroupRequest(group=name, topic=str(fields.get("topic", "")), queue=queue, to=to)
    await visit.call("AdminService/SeekGroup", request)
    where = request.topic if queue is None else f"queue {queue} of {request.topic}"
    return visit.redirect(f"/groups/{quote(name, safe='')}", said=f"It was moved in {where}.")
