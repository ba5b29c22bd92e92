"""Calls of the broker's own services, let in, judged and recorded as those of any client."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from broker.services.rights import CALLER, EVERYBODY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager, ExitStack

    from broker.api.access import ChangeRecorder, Gate
    from broker.wire.response_budget import ResponseBudget

_GIVEN_UP = (asyncio.CancelledError, GeneratorExit)
_PREFIX = "/halfmq.v1."
LOOK_AGAIN = 1.0
"""Seconds between two looks whether who began a stream is still known."""


class Admission(Protocol):
    """Counts what is under way, with the calls by gRPC.

    Attributes:
        responses: bytes of answers that are in use.
    """

    responses: ResponseBudget

    def admitted(self, method: str, name: str, peer: str, *, is_stream: bool = False) -> AbstractContextManager[None]:
        """Counts a call while it lasts; raises Overloaded."""
        ...


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

    def __init__(
        self, servicers: Mapping[str, Any], gate: Gate | None, recorder: ChangeRecorder, admission: Admission
    ) -> None:
        """Takes the servicers by the names of their services, the gate if access is on, and what records and counts."""
        self._servicers = servicers
        self._gate = gate
        self._recorder = recorder
        self._admission = admission

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

    async def call(self, method: str, request: Any, visitor: Visitor, kept: ExitStack) -> Any:
        """Makes a call; a large answer counts until `kept` is closed.

        Raises:
            BrokerError: it is not allowed, or failed.
        """
        name = await self.enter(method, visitor)
        with self._admission.admitted(_PREFIX + method, name, visitor.address):
            self._judge(method, request)
            record = await self._record(method, request, visitor)
            try:
                answer = await self._method(method)(request, visitor)
            except (Exception, *_GIVEN_UP) as error:
                self._failed(record, error)
                raise
        if give_back := self._admission.responses.take(visitor, answer):
            kept.callback(give_back, None)
        return answer

    async def stream(self, method: str, request: Any, visitor: Visitor) -> AsyncIterator[Any]:
        """Makes a call that answers with a stream, which ends when its caller may not make it any more.

        Raises:
            BrokerError: it is not allowed, or failed.
        """
        name = await self.enter(method, visitor)
        with self._admission.admitted(_PREFIX + method, name, visitor.address, is_stream=True):
            still_permitted = self._judge(method, request)
            look_at = time.monotonic() + LOOK_AGAIN
            record = await self._record(method, request, visitor)
            try:
                async with aclosing(self._method(method)(request, visitor)) as answers:
                    async for answer in answers:
                        still_permitted()
                        if self._gate is not None and time.monotonic() >= look_at:
                            await self._gate.look_again(_PREFIX + method, visitor)
                            look_at = time.monotonic() + LOOK_AGAIN
                        yield answer
            except (Exception, *_GIVEN_UP) as error:
                self._failed(record, error)
                raise

    def _method(self, method: str) -> Any:
        service, _, name = method.partition("/")
        return getattr(self._servicers[service], name)

    def _judge(self, method: str, request: Any) -> Callable[[], None]:
        """Judges a request; returns how to judge it again."""
        return _nothing if self._gate is None else self._gate.judge(_PREFIX + method, request)

    async def _record(self, method: str, request: Any, visitor: Visitor) -> Any:
        path = _PREFIX + method
        return await self._recorder.changing(path, request, visitor) if self._recorder.records(path) else None

    def _failed(self, record: Any, error: BaseException) -> None:
        if record is not None:
            self._recorder.failed(record, error)


def _nothing() -> None:
    return
