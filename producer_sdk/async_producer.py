"""The asynchronous producer of ordinary messages; the synchronous one runs it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Self

from halfmq.v1 import producer_pb2
from producer_sdk.batching import Batcher, BatchLimits, ask
from producer_sdk.connection import BrokerLink, check_kind, check_seconds, client_name
from producer_sdk.connection.statuses import as_item_error
from producer_sdk.errors import BatchRefused, ClientClosed, HalfmqError
from producer_sdk.ids import new_id
from producer_sdk.message import LogPosition, Message, as_messages, encode_message, to_wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

    from halfmq.v1 import message_pb2
    from producer_sdk.connection import Endpoint, RetryConfig, TlsConfig

__all__ = ["AsyncProducer"]

_log = logging.getLogger("halfmq.producer")


class AsyncProducer:
    """Sends ordinary messages, outside of transactions.

    Use it with ``async with``, or call ``close()`` in the end. It belongs to the event loop of its first call.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        client_id: str | None = None,
        retry: RetryConfig | None = None,
        tls: TlsConfig | None = None,
        batching: BatchLimits | None = None,
        close_grace: float = 10.0,
    ) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by commas, or a sequence.
            client_id: This producer's name in the broker's logs; None: host and process number.
            retry: When calls are tried again; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are under way; None: the defaults of BatchLimits.
            close_grace: Seconds that ``close()`` waits, at most, for what is under way.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        check_kind("batching", batching, BatchLimits)
        check_seconds("close_grace", close_grace, least=0)
        self.client_id = client_name(client_id)
        self._link = BrokerLink(endpoint, tls=tls, retry=retry)
        self._limits = batching or BatchLimits()
        self._sends = Batcher(self._send_messages, self._limits)
        self._close_grace = close_grace
        self._closed = False

    async def start(self) -> None:
        """Starts what runs in the background; the first call does it too."""
        self._begin()

    async def close(self) -> None:
        """Waits for what is under way, then closes the connections. Safe to repeat."""
        if self._closed:
            return
        self._link.bind()
        self._closed = True
        try:
            await asyncio.wait_for(self._settle(), self._close_grace)
        except TimeoutError:
            _log.warning("closing with requests under way; what they carried is unconfirmed")
        finally:
            await self._link.close()

    async def __aenter__(self) -> Self:
        """Starts the producer."""
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the producer."""
        await self.close()

    async def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
    ) -> LogPosition:
        """Sends one message; consumers see it at once. See Message for the arguments.

        Returns:
            Where it lies.

        Raises:
            RequestRefused: The broker refused it, or it is larger than any request may be.
            BrokerUnavailable: No broker answered in time; it may or may not have been stored.
            TypeError: An argument is of the wrong type.
            ValueError: A text cannot be written in UTF-8.
        """
        self._begin()
        message = encode_message(topic, body, tag, keys, properties, message_group, new_id())
        return _position(await ask(self._sends, self._link.retry, message, message.ByteSize() + 4))

    async def send_many(self, messages: Iterable[Message]) -> list[LogPosition]:
        """Sends messages; each stands for itself.

        Returns:
            Where they lie, in the order of the call.

        Raises:
            BatchRefused: Some were refused or are unconfirmed; it says which, and where the others lie.
        """
        self._begin()
        encoded = [to_wire(message, new_id()) for message in as_messages(messages)]
        sends = [ask(self._sends, self._link.retry, message, message.ByteSize() + 4) for message in encoded]
        outcomes: list[LogPosition | HalfmqError] = []
        for result in await asyncio.gather(*sends, return_exceptions=True):
            try:
                if isinstance(result, BaseException):
                    raise result
                outcomes.append(_position(result))
            except HalfmqError as error:
                outcomes.append(error)
        positions = [outcome for outcome in outcomes if isinstance(outcome, LogPosition)]
        if len(positions) < len(outcomes):
            first = next(outcome for outcome in outcomes if isinstance(outcome, HalfmqError))
            missing = len(outcomes) - len(positions)
            msg = f"{missing} of {len(outcomes)} messages were not sent; the first of them: {first}; see .outcomes"
            raise BatchRefused(msg, outcomes)
        return positions

    def _begin(self) -> None:
        self._refuse_if_closed()
        self._link.bind()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            msg = f"this {type(self).__name__} is closed; make a new one"
            raise ClientClosed(msg)

    async def _settle(self) -> None:
        await self._sends.settle()

    async def _send_messages(self, messages: list[message_pb2.Message], _: str) -> Sequence[producer_pb2.SendResult]:
        request = producer_pb2.SendRequest(messages=messages)
        return (await self._link.call(lambda broker: broker.producer.Send, request)).results


def _position(result: producer_pb2.SendResult) -> LogPosition:
    if result.HasField("error"):
        raise as_item_error(result.error)
    return LogPosition.of(result.position)
