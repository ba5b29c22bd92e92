"""The first page: what needs a decision, how much there is, and live charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


PATIENCE_MS = 100
"""Milliseconds for a new count; a page shows the figures before that one otherwise, and how old they are."""
MOST_PENDING, MOST_GROUPS = 100, 20
"""Producer groups that are listed on the page, and consumer groups with dead letters."""


async def counted(visit: Visit) -> pb.GetOverviewResponse | None:
    """What there is in all, without waiting for long; None: it is being counted for the first time."""
    request = pb.GetOverviewRequest()
    request.wait.FromMilliseconds(PATIENCE_MS)
    found: pb.GetOverviewResponse = await visit.call("AdminService/GetOverview", request)
    return found if found.HasField("time") else None


async def overview(visit: Visit) -> Response:
    """The page."""
    found = await counted(visit)
    largest = 0 if found is None else _largest(found)
    return await visit.page(
        "overview.html",
        title="Overview",
        found=found,
        largest=largest,
        most_pending=MOST_PENDING,
        most_groups=MOST_GROUPS,
    )


async def figures(visit: Visit) -> Response:
    """The figures of the charts; the browser asks for them every few seconds."""
    found = await counted(visit)
    if found is None:
        return JSONResponse({})
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
