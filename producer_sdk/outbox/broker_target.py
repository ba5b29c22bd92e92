"""The usual target of a relay: halfmq's brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from client_core.connection import BackgroundRunner, BrokerLink, RetryConfig
from client_core.connection.statuses import as_item_error, is_unreachable
from client_core.encoding import to_wire
from client_core.errors import BrokerUnavailable, DuplicateKey, HalfmqError, RequestRefused
from halfmq.v1 import producer_pb2
from producer_sdk.outbox.target import NotTried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from client_core.connection import Endpoint, TlsConfig
    from client_core.connection.link import Broker
    from client_core.message import Message
    from halfmq.v1 import message_pb2 as pb

__all__ = ["BrokerTarget"]

_TRY = RetryConfig(deadline=8.0, attempt_timeout=8.0, maximum_backoff=1.0)
"""The relay tries again by itself."""
_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.OUT_OF_RANGE,
        None,
    }
)
"""What a message is refused with for ever; missing rights, for example, can be given."""
_BEHIND = "one before it in its message group was not stored"


class BrokerTarget:
    """Sends to brokers, each message under its id: one that comes again is stored once.

    In requests that are in order: behind a refused message a broker stores none of its message group.
    """

    def __init__(self, endpoint: Endpoint, *, tls: TlsConfig | None = None) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen, or a Connection.
            tls: How to encrypt; None: not at all.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._link = BrokerLink(endpoint, tls=tls)
        # Of a Connection, only how to reach the brokers: the relay's patience is its own.
        self._link.retry = _TRY
        self._runner = BackgroundRunner("relay")
        self._closed = False
        self.is_failing = False
        """Whether the last try to reach a broker failed: see RelayTarget."""

    def send(self, messages: Sequence[Message], may_send: Callable[[], bool]) -> list[Exception | None]:
        """Stores messages; see RelayTarget."""
        return self._runner.run(self._send(messages, may_send))

    def close(self) -> None:
        """Closes the connections."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._runner.started:
                self._runner.run(self._link.close())
        finally:
            self._runner.close()

    async def _send(self, messages: Sequence[Message], may_send: Callable[[], bool]) -> list[Exception | None]:
        self._link.bind()
        outcomes: list[Exception | None] = [None] * len(messages)
        stopped: dict[tuple[str, str], Exception] = {}
        left = list(range(len(messages)))
        most = len(messages)
        while left:
            part, left = self._part(messages, left, most, stopped, outcomes)
            try:
                wire = [to_wire(messages[index], messages[index].message_id) for index in part]
                found = await self._request(wire, may_send)
            except RequestRefused as error:
                if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and len(part) > 1:
                    # Together, with all their properties, they are too large for a request.
                    most, left = len(part) // 2, sorted(part + left)
                    continue
                if error.code in _FINAL and len(part) > 1:
                    # One of them is at fault, and the others need not share its fate.
                    most, left = 1, sorted(part + left)
                    continue
                found = [error if error.code in _FINAL else _passing(error) for _ in part]
            for index, outcome in zip(part, found, strict=True):
                outcomes[index] = outcome
                if outcome is not None and (order := _order_of(messages[index])) is not None:
                    stopped.setdefault(order, outcome)
        return outcomes

    def _part(
        self,
        messages: Sequence[Message],
        indexes: list[int],
        most: int,
        stopped: dict[tuple[str, str], Exception],
        outcomes: list[Exception | None],
    ) -> tuple[list[int], list[int]]:
        """The messages of the next request, and those of later ones; those that are not to be sent have an outcome."""
        part: list[int] = []
        later: list[int] = []
        for index in indexes:
            order = _order_of(messages[index])
            front = None if order is None else stopped.get(order)
            if front is not None:
                outcomes[index] = NotTried(f"{_BEHIND}: {front}")
            elif len(part) >= most:
                later.append(index)
            else:
                part.append(index)
        return part, later

    async def _request(self, wire: list[pb.Message], may_send: Callable[[], bool]) -> list[Exception | None]:
        if not wire:
            return []
        request = producer_pb2.SendRequest(messages=wire, in_order=True)
        tried = False

        async def once(broker: Broker, timeout: float) -> producer_pb2.SendResponse | None:  # noqa: ASYNC109 - gRPC's own
            nonlocal tried
            if not may_send():
                return None
            tried = True
            try:
                answer = await broker.producer.Send(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                self.is_failing = is_unreachable(error)
                raise
            self.is_failing = False
            return answer

        response = await self._link.attempt(once)
        if response is None:
            # After a try without an answer it may be stored.
            kind = BrokerUnavailable if tried else NotTried
            return [kind("the relay stood still, or has lost its turn") for _ in wire]
        return [_outcome(result) for result in response.results]


def _order_of(message: Message) -> tuple[str, str] | None:
    return None if message.message_group is None else (message.topic, message.message_group)


def _outcome(result: Any) -> Exception | None:
    if not result.HasField("error"):
        return None
    error = as_item_error(result.error)
    if error.reason == "BEHIND_REFUSED":
        return NotTried(_BEHIND)
    # Its owner is a half message without a verdict: it will have one.
    passing = isinstance(error, DuplicateKey) or (isinstance(error, RequestRefused) and error.code not in _FINAL)
    return _passing(error) if passing else error


def _passing(error: HalfmqError) -> HalfmqError:
    return BrokerUnavailable(str(error), code=error.code, reason=error.reason, field=error.field)
