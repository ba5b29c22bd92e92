"""grpc.health.v1, whose watchers do not delay a drain.

The services' names, and the empty one, tell of this process alone (liveness): restarting it would not bring a database
back. The name `ready` tells whether it can do its work (readiness): its database can be used, and it does not drain.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

if TYPE_CHECKING:
    from collections.abc import Iterable

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

READY = "ready"
"""The name under which readiness is told."""


class HealthServicer(aio.HealthServicer):  # type: ignore[misc]
    """The library's servicer; once it drains, watchers get that state, and their streams end."""

    def __init__(self, services: Iterable[str]) -> None:
        """Takes the services' full names; none serves yet."""
        super().__init__()
        self._services = ("", *services)
        self._draining = asyncio.Event()
        self._serves = False
        self._ready = True

    async def serve(self) -> None:
        """Sets all services to SERVING."""
        for service in self._services:
            await self.set(service, _SERVING)
        self._serves = True
        await self.tell_readiness(self._ready)

    async def tell_readiness(self, ready: bool) -> None:
        """Sets the state of `ready`, once this serves, and until it drains."""
        self._ready = ready
        if self._serves:
            await self.set(READY, _SERVING if ready else _NOT_SERVING)

    async def drain(self) -> None:
        """Sets all services to NOT_SERVING, and ends all watches."""
        self._serves = self._ready = False
        for service in (*self._services, READY):
            await self.set(service, _NOT_SERVING)
        self._draining.set()

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> health_pb2.HealthListResponse:
        """Returns the states of all services."""
        state = _NOT_SERVING if self._draining.is_set() else _SERVING
        statuses = {service: health_pb2.HealthCheckResponse(status=state) for service in self._services}
        statuses[READY] = health_pb2.HealthCheckResponse(status=_SERVING if self._ready else _NOT_SERVING)
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Returns the state of a service whenever it changes."""
        told = _Told(context)
        watching = asyncio.ensure_future(super().Watch(request, told))
        ending = asyncio.ensure_future(self._drained(told))
        try:
            await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            ending.cancel()
            await asyncio.gather(watching, ending, return_exceptions=True)

    async def _drained(self, told: _Told) -> None:
        await self._draining.wait()
        await told.away.wait()


class _Told:
    """The last state sent to a watcher: `away` is set while it is not SERVING."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.away = asyncio.Event()

    async def write(self, response: health_pb2.HealthCheckResponse) -> None:
        await self._context.write(response)
        if response.status == _SERVING:
            self.away.clear()
        else:
            self.away.set()
