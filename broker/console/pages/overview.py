"""The first page: what needs a decision, how much there is, and live charts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


PATIENCE = 0.1
"""Seconds for counting; a page that does not have the figures by then asks for them once it is shown."""


async def overview(visit: Visit) -> Response:
    """The page."""
    counting = asyncio.ensure_future(visit.call("AdminService/GetOverview", pb.GetOverviewRequest()))
    try:
        await asyncio.wait({counting}, timeout=PATIENCE)
    finally:
        # What it waits for goes on, and is there at the next look.
        if not counting.done():
            counting.cancel()
    found = counting.result() if counting.done() else None
    largest = 0 if found is None else _largest(found)
    return await visit.page("overview.html", title="Overview", found=found, largest=largest)


async def figures(visit: Visit) -> Response:
    """The figures of the charts; the browser asks for them every few seconds."""
    found = await visit.call("AdminService/GetOverview", pb.GetOverviewRequest())
    return JSONResponse(
        {
            "time": found.time.seconds + found.time.nanos / 1e9,
            "released": found.released,
            "prepared": sum(each.prepared for each in found.pending),
            "parked": sum(each.parked for each in found.pending),
            "scheduled": found.scheduled,
        }
    )


def _largest(found: pb.GetOverviewResponse) -> int:
    return max((each.prepared + each.parked for each in found.ages), default=0)
