"""Channels to the brokers of one database, and calls with fail-over between them."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from client_core.connection.connection import Connection, Endpoint
from client_core.connection.statuses import as_halfmq_error, is_unreachable
from client_core.errors import ClientClosed
from halfmq.v1 import (
    admin_pb2_grpc,
    consumer_pb2_grpc,
    producer_pb2_grpc,
    query_pb2_grpc,
    sink_pb2_grpc,
    transaction_pb2_grpc,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from client_core.connection.retry import RetryConfig
    from client_core.connection.tls import TlsConfig
    from halfmq.v1.consumer_pb2_grpc import ConsumerServiceAsyncStub
    from halfmq.v1.producer_pb2_grpc import ProducerServiceAsyncStub
    from halfmq.v1.transaction_pb2_grpc import TransactionServiceAsyncStub

__all__ = ["Broker", "BrokerLink", "Route"]

_log = logging.getLogger("halfmq.connection")

_MIB = 1 << 20
_CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", 32 * _MIB),
    ("grpc.max_receive_message_length", 32 * _MIB),
    # An unreachable broker (power, network) is detected after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC uses the longer of the two, and this one defaults to a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Off: the probe lets the window of an unread stream grow to hundreds of megabytes.
    ("grpc.http2.bdp_probe", 0),
    # gRPC's own back-off between connection attempts grows to 2 minutes; a broker that is back must be found in
    # seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Broker:
    """One endpoint with its channel and the protocol's services; the channel connects when it is first used."""

    def __init__(self, endpoint: str, connection: Connection) -> None:
        """Creates the channel; call it on the event loop that will use it."""
        self.endpoint = endpoint
        self.channel = connection.channel(endpoint, _CHANNEL_OPTIONS)

    @cached_property
    def transactions(self) -> TransactionServiceAsyncStub:
        """The transaction service."""
        return transaction_pb2_grpc.TransactionServiceStub(self.channel)

    @cached_property
    def producer(self) -> ProducerServiceAsyncStub:
        """The service for ordinary messages."""
        return producer_pb2_grpc.ProducerServiceStub(self.channel)

    @cached_property
    def consumer(self) -> ConsumerServiceAsyncStub:
        """The consumer service."""
        return consumer_pb2_grpc.ConsumerServiceStub(self.channel)

    @cached_property
    def admin(self) -> admin_pb2_grpc.AdminServiceAsyncStub:
        """The administration service."""
        return admin_pb2_grpc.AdminServiceStub(self.channel)

    @cached_property
    def query(self) -> query_pb2_grpc.QueryServiceAsyncStub:
        """The service that finds messages."""
        return query_pb2_grpc.QueryServiceStub(self.channel)

    @cached_property
    def sinks(self) -> sink_pb2_grpc.SinkServiceAsyncStub:
        """The service for exactly-once output."""
        return sink_pb2_grpc.SinkServiceStub(self.channel)


class Route:
    """The endpoint that one user of a link currently uses: the same one until it fails."""

    def __init__(self, link: BrokerLink) -> None:
        """Starts at the first endpoint in the order of the link."""
        self._link = link
        self._index = 0

    @property
    def choices(self) -> int:
        """Number of endpoints."""
        return len(self._link.endpoints)

    def broker(self) -> Broker:
        """The current broker.

        Raises:
            ClientClosed: The link is closed.
        """
        return self._link.broker(self._index)

    def fail_over(self, failed: Broker) -> None:
        """Switches to the next endpoint, unless another call has done so since ``failed`` was chosen."""
        if self._link.endpoints[self._index] == failed.endpoint:
            self._index = (self._index + 1) % self.choices


class BrokerLink:
    """One client's brokers. Channels are created on demand and belong to one event loop."""

    def __init__(self, endpoint: Endpoint, *, tls: TlsConfig | None = None, retry: RetryConfig | None = None) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen, or a Connection.
            tls: How to encrypt; None: not at all, or as the Connection says.
            retry: When calls are retried; None: the defaults of RetryConfig, or as the Connection says.

        Raises:
            ConfigurationError: The endpoint is invalid, or another argument is of the wrong type.
        """
        self._connection = Connection.of(endpoint, tls=tls, retry=retry)
        self.endpoints = self._connection.order()
        self.retry = self._connection.retry
        self._brokers: dict[int, Broker] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._route = Route(self)

    def bind(self) -> None:
        """Records the event loop at the first call, and refuses any other one from then on.

        Raises:
            RuntimeError: This is not the event loop of the first call.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif loop is not self._loop:
            msg = "this client belongs to the event loop it was first used in; make one in each asyncio.run()"
            raise RuntimeError(msg)

    def broker(self, index: int) -> Broker:
        """The broker at an endpoint, with its own channel.

        Raises:
            ClientClosed: The link is closed.
        """
        if self._closed:
            msg = "this client is closed; make a new one"
            raise ClientClosed(msg)
        if index not in self._brokers:
            self._brokers[index] = Broker(self.endpoints[index], self._connection)
        return self._brokers[index]

    async def call(
        self, method: Callable[[Broker], grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]], request: RequestT
    ) -> ResponseT:
        """Sends a request until a broker answers it, or the retry limits are reached.

        Args:
            method: Selects the broker's method, such as ``lambda broker: broker.transactions.Commit``.
            request: The request. It is resent unchanged, so its ids must be generated by the client.

        Returns:
            The answer.

        Raises:
            BrokerUnavailable: No broker answered in time.
            BrokerFailed: A broker failed to process it.
            RequestRefused: A broker refused the request.
            ClientClosed: The link is closed.
        """

        async def send(broker: Broker, timeout: float) -> ResponseT:  # noqa: ASYNC109 - gRPC's own
            return await method(broker)(request, timeout=timeout)

        return await self.attempt(send)

    async def attempt(self, operation: Callable[[Broker, float], Awaitable[ResponseT]], wait: float = 0.0) -> ResponseT:
        """Runs an operation against one broker after the other; like ``call``, for any operation.

        Args:
            operation: Called with a broker and a timeout in seconds; idempotent, and fails with gRPC's errors.
            wait: Extra seconds that it may take, because the broker is asked to wait.
        """
        self.bind()
        give_up = time.monotonic() + self.retry.deadline

        async def once() -> ResponseT:
            broker = self._route.broker()
            timeout = min(self.retry.attempt_timeout, max(0.001, give_up - time.monotonic())) + wait
            try:
                return await operation(broker, timeout)
            except grpc.aio.AioRpcError as error:
                _log.debug("%s answered %s: %s", broker.endpoint, error.code().name, error.details())
                if is_unreachable(error):
                    self._route.fail_over(broker)
                raise
            except (grpc.aio.UsageError, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if not self._closed or (task is not None and task.cancelling()):
                    raise
                # The call was cancelled by the end of its channel, not this task.
                msg = "this client was closed while the call was under way; make a new one and repeat the call"
                raise ClientClosed(msg) from error

        try:
            return await self.retry.run(once)
        except grpc.aio.AioRpcError as error:
            raise as_halfmq_error(error) from error

    async def close(self, grace: float | None = None) -> None:
        """Closes all channels; calls in flight get this many seconds to end."""
        self._closed = True
        brokers, self._brokers = list(self._brokers.values()), {}
        await asyncio.gather(*(broker.channel.close(grace) for broker in brokers))
