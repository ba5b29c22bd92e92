"""Answers to forms of what takes long: a line of JSON for each step, or the result on the next page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from broker.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from broker.console.visit import Visit

PROGRESS = "application/x-ndjson"
"""A line of JSON for each step."""
_WORDS = {"redriven": "delivered again", "left": "left as they are", "deleted": "deleted"}


async def answer(visit: Visit, method: str, request: Any, names: tuple[str, ...], then: str) -> Response:
    """Makes a call that answers with a stream of its progress.

    Args:
        visit: of whoever asks. The console's script gets the progress as it goes; a browser without scripts the next
            page, with the result.
        method: of the call.
        request: of the call.
        names: the counts that are told.
        then: the path of the next page.
    """
    if PROGRESS in visit.request.headers.get("accept", ""):
        return StreamingResponse(_lines(visit, method, request, names), media_type=PROGRESS)
    last: Any = None
    async for step in visit.stream(method, request):
        last = step
    counts = [f"{getattr(last, name, 0)} {words}" for name, words in _WORDS.items() if name in names]
    return visit.redirect(then, said=f"{', '.join(counts)}.")


async def _lines(visit: Visit, method: str, request: Any, names: tuple[str, ...]) -> AsyncIterator[str]:
    try:
        async for step in visit.stream(method, request):
            yield json.dumps({**{name: getattr(step, name) for name in names}, "done": step.done}) + "\n"
    except BrokerError as error:
        # The answer has begun.
        yield json.dumps({"error": error.message, "done": True}) + "\n"
