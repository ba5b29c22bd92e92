"""Dead letters of a group: looking at them, delivering them again, and deleting them after they were counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from broker.console.fields import filter_of, number_of, time_of
from broker.console.progress import answer
from broker.console.visit import PAGE
from broker.errors import InvalidArgument
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


async def dead_letters(visit: Visit) -> Response:
    """A page of a group's dead letters, the oldest first."""
    name = visit.path("name")
    request = pb.ListDeadLettersRequest(
        group=name,
        filter=filter_of(visit.query("tags"), visit.query("sql")),
        page_size=PAGE,
        page_token=visit.query("page_token"),
    )
    found = await visit.call("AdminService/ListDeadLetters", request)
    return await visit.page(
        "dead_letters.html",
        title=f"Dead letters of {name}",
        group=name,
        found=found.dead_letters,
        filtered=request.HasField("filter"),
        next_page=visit.next_page(found.next_page_token),
        said=visit.said,
    )


async def redrive(visit: Visit) -> Response:
    """Delivers dead letters to their group again: those that are chosen, or all that match the filter."""
    form = await visit.form()
    request = pb.RedriveDeadLettersRequest(
        group=visit.path("name"),
        filter=filter_of(str(form.get("tags", "")), str(form.get("sql", ""))),
        republish_expired="republish" in form,
    )
    for text in form.getlist("offset"):
        offset = number_of(str(text), "offset")
        if offset is None:
            raise InvalidArgument("An offset is a number, 0 or more.", field="offset")
        request.offsets.append(offset)
    names = ("examined", "total", "redriven", "left")
    return await answer(visit, "AdminService/RedriveDeadLetters", request, names, _list(visit))


async def count(visit: Visit) -> Response:
    """Counts the dead letters that would be deleted, and offers to delete them; changes nothing."""
    group = visit.path("name")
    request = pb.PurgeDeadLettersRequest(
        group=group,
        before=time_of(visit.query("before"), "before"),
        before_offset=number_of(visit.query("before_offset"), "before_offset"),
        dry_run=True,
    )
    last: Any = pb.PurgeDeadLettersResponse()
    async for step in visit.stream("AdminService/PurgeDeadLetters", request):
        last = step
    return await visit.page(
        "purge.html",
        title=f"Delete dead letters of {group}",
        group=group,
        count=last.deleted,
        end=last.end_offset,
        before=visit.query("before"),
        offset=visit.query("before_offset"),
    )


async def purge(visit: Visit) -> Response:
    """Deletes the oldest dead letters, as far as they were counted."""
    form = await visit.form()
    end = number_of(str(form.get("before_offset", "")), "before_offset")
    if end is None:
        raise InvalidArgument("Count them first: only what was there by then is deleted.", field="before_offset")
    request = pb.PurgeDeadLettersRequest(group=visit.path("name"), before_offset=end)
    return await answer(visit, "AdminService/PurgeDeadLetters", request, ("deleted",), _list(visit))


def _list(visit: Visit) -> str:
    return f"/groups/{quote(visit.path('name'), safe='')}/dead-letters"
