"""The first page: what needs a decision, how much there is, and live charts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from starlette.responses import Response

    from broker.console.visit import Visit


async def overview(visit: Visit) -> Response:
    """The page."""
    found = await visit.call("AdminService/GetOverview", pb.GetOverviewRequest())
    return await visit.page("overview.html", title="Overview", found=found, largest=_largest(found), live=True)


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
