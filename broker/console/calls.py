"""Calls of the broker's own services, let in, judged and recorded as those of any client."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from broker.services.rights import CALLER, EVERYBODY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from broker.api.access import ChangeRecorder, Gate

_GIVEN_UP = (asyncio.CancelledError, GeneratorExit)
_PREFIX = "/halfmq.v1."


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks for a page, as a call's context says it.

    Attributes:
        address: where from, as gRPC names it, such as `ipv4:10.0.0.1:4711`.
        token: the token that was signed in with; empty: none.
        encrypted: whether the connection has TLS.
    """

    address: str
    token: str = field(default="", repr=False)
    encrypted: bool = False

    def peer(self) -> str:
        """Where the call comes from."""
        return self.address

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """The headers that tell who calls."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """What is known of the connection."""
        return {"transport_security_type": [b"ssl"]} if self.encrypted else {}


class Calls:
    """Calls methods by their names, such as AdminService/ListTopics."""

    def __init__(self, servicers: Mapping[str, Any], gate: Gate | None, recorder: ChangeRecorder) -> None:
        """Takes the servicers by the names of their services, the gate if access is on, and what records changes."""
        self._servicers = servicers
        self._gate = gate
        self._recorder = recorder

    @property
    def guarded(self) -> bool:
        """Whether only those who are known are let in."""
        return self._gate is not None

    async def enter(self, method: str, visitor: Visitor) -> str:
        """Lets a visitor in, as far as credentials go; returns the name, which is empty without access.

        Raises:
            Unauthenticated: nobody who is known.
        """
        CALLER.set(EVERYBODY)
        return "" if self._gate is None else await self._gate.enter(_PREFIX + method, visitor, ())

    async def call(self, method: str, request: Any, visitor: Visitor) -> Any:
        """Makes a call.

        Raises:
            BrokerError: it is not allowed, or failed.
        """
        record = await self._begin(method, request, visitor)
        service, _, name = method.partition("/")
        try:
            return await getattr(self._servicers[service], name)(request, visitor)
        except (Exception, *_GIVEN_UP) as error:
            if record is not None:
                self._recorder.failed(record, error)
            raise

    async def stream(self, method: str, request: Any, visitor: Visitor) -> AsyncIterator[Any]:
        """Makes a call that answers with a stream.

        Raises:
            BrokerError: it is not allowed, or failed.
        """
        record = await self._begin(method, request, visitor)
        service, _, name = method.partition("/")
        try:
            async with aclosing(getattr(self._servicers[service], name)(request, visitor)) as answers:
                async for answer in answers:
                    yield answer
        except (Exception, *_GIVEN_UP) as error:
            if record is not None:
                self._recorder.failed(record, error)
            raise

    async def _begin(self, method: str, request: Any, visitor: Visitor) -> Any:
        path = _PREFIX + method
        await self.enter(method, visitor)
        if self._gate is not None:
            self._gate.judge(path, request)
        if not self._recorder.records(path):
            return None
        return await self._recorder.changing(path, request, visitor)
