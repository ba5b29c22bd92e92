"""Dead letters of a group: looking at them, redriving them with progress, and purging them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.responses import StreamingResponse

from broker.console.visit import PAGE
from broker.errors import BrokerError, InvalidArgument
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from broker.console.visit import Visit

PROGRESS = "application/x-ndjson"
"""A line of JSON for each step."""
_WORDS = {"redriven": "delivered again", "left": "left as they are", "deleted": "deleted"}


async def dead_letters(visit: Visit) -> Response:
    """A page of a group's dead letters, the oldest first."""
    name = visit.path("name")
    request = pb.ListDeadLettersRequest(group=name, page_size=PAGE, page_token=visit.query("page_token"))
    found = await visit.call("AdminService/ListDeadLetters", request)
    return await visit.page(
        "dead_letters.html",
        title=f"Dead letters of {name}",
        group=name,
        found=found.dead_letters,
        next_page=visit.next_page(found.next_page_token),
        said=visit.said,
    )


async def redrive(visit: Visit) -> Response:
    """Delivers dead letters to their group again; the script gets a line of JSON for each step of it."""
    name, fields = visit.path("name"), await visit.form()
    request = pb.RedriveDeadLettersRequest(group=name, republish_expired="republish" in fields)
    request.offsets.extend(_offsets(fields.getlist("offset")))
    return await _answer(visit, "AdminService/RedriveDeadLetters", request, ("examined", "total", "redriven", "left"))


async def purge(visit: Visit) -> Response:
    """Deletes the oldest dead letters; the same way."""
    name, fields = visit.path("name"), await visit.form()
    request = pb.PurgeDeadLettersRequest(group=name)
    if (before := str(fields.get("before", "")).strip()) != "":
        request.before_offset = _offsets([before])[0]
    return await _answer(visit, "AdminService/PurgeDeadLetters", request, ("deleted",))


async def _answer(visit: Visit, method: str, request: Any, names: tuple[str, ...]) -> Response:
    """What the script asks for, as it goes; a browser without scripts gets the list again, with the result."""
    if PROGRESS in visit.request.headers.get("accept", ""):
        return StreamingResponse(_progress(visit, method, request, names), media_type=PROGRESS)
    last: Any = None
    async for step in visit.stream(method, request):
        last = step
    counts = [f"{getattr(last, name, 0)} {words}" for name, words in _WORDS.items() if name in names]
    return visit.redirect(f"/groups/{quote(visit.path('name'), safe='')}/dead-letters", said=f"{', '.join(counts)}.")


async def _progress(visit: Visit, method: str, request: Any, names: tuple[str, ...]) -> AsyncIterator[str]:
    try:
        async for step in visit.stream(method, request):
            yield json.dumps({**{name: getattr(step, name) for name in names}, "done": step.done}) + "\n"
    except BrokerError as error:
        # The answer has begun.
        yield json.dumps({"error": error.message, "done": True}) + "\n"


def _offsets(given: list[Any]) -> list[int]:
    texts = [str(each) for each in given]
    if not all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts):
        raise InvalidArgument("An offset is a number, 0 or more.", field="offset")
    return [int(text) for text in texts]
