"""The asynchronous producer of ordinary messages; the synchronous one runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from client_core.arguments import check_kind, check_seconds, client_name
from client_core.batching import Batcher, BatchLimits, ask, is_passing, outcomes_of
from client_core.connection import BrokerLink
from client_core.connection.statuses import as_item_error
from client_core.encoding import encode_message, to_wire
from client_core.errors import (
    BatchRecallRefused,
    BatchRefused,
    ClientClosed,
    HalfmqError,
    RecallRefused,
    RequestRefused,
)
from client_core.ids import plausible_id, sent_id
from client_core.message import LogPosition, as_messages
from client_core.tracing import current_tracing
from halfmq.v1 import producer_pb2
from producer_sdk.received import as_received

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from client_core.connection import Endpoint, RetryConfig, TlsConfig
    from client_core.message import Message
    from client_core.times import Span
    from halfmq.v1 import message_pb2
    from producer_sdk.received import Received

__all__ = ["AsyncProducer"]

_log = logging.getLogger("halfmq.producer")


class AsyncProducer:
    """Sends ordinary messages, outside of transactions.

    Use it with ``async with``, or call ``close()`` when done. It belongs to the event loop of its first call.
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
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            client_id: This producer's name in the broker's logs; None: host and process number.
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.
            batching: How large requests grow and how many are in flight; None: the defaults of BatchLimits.
            close_grace: Seconds that ``close()`` waits, at most, for calls in flight.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        check_kind("batching", batching, BatchLimits)
        check_seconds("close_grace", close_grace, least=0)
        self.client_id = client_name(client_id)
        self._link = BrokerLink(endpoint, tls=tls, retry=retry)
        self._limits = batching or BatchLimits()
        self._sends = Batcher(self._send_messages, self._limits)
        # For ordered messages: two requests in flight may overtake each other.
        self._ordered_sends = Batcher(self._send_messages, replace(self._limits, in_flight=1), is_passing)
        self._recalls = Batcher(self._send_recalls, self._limits)
        self._close_grace = close_grace
        self._closed = False

    async def start(self) -> None:
        """Starts the background tasks; the first call does it too."""
        self._begin()

    async def close(self) -> None:
        """Waits for calls in flight, then closes the connections. Safe to repeat."""
        if self._closed:
            return
        self._link.bind()
        self._closed = True
        try:
            await asyncio.wait_for(self._drain(), self._close_grace)
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
        deliver_at: datetime | None = None,
        delay: Span | None = None,
        priority: int = 0,
        dedup_key: str | None = None,
        message_id: str | None = None,
    ) -> LogPosition:
        """Sends one message; consumers see it at once, or at its delivery time. See Message for the arguments.

        Returns:
            Its position, or when it will be delivered. With ``duplicate`` set, the position is that of the earlier
            message with the ``dedup_key``; this one is dropped.

        Raises:
            DuplicateKey: A half message without a verdict has the ``dedup_key``.
            RequestRefused: The broker refused it, or it is larger than any request may be.
            BrokerUnavailable: No broker answered in time; it may or may not have been stored. Resent with
                ``message_id=error.message_ids[0]`` it is stored once.
            BrokerFailed: The same, because a broker failed to process it.
            TypeError: An argument is of the wrong type.
            ValueError: A text cannot be written in UTF-8, a time has no time zone, an id is no UUID, or two arguments
                exclude each other.
        """
        self._begin()
        message = encode_message(
            topic,
            body,
            tag,
            keys,
            properties,
            message_group,
            sent_id(message_id),
            deliver_at=deliver_at,
            delay=delay,
            priority=priority,
            dedup_key=dedup_key,
        )
        sends = self._ordered_sends if message_group else self._sends
        tracing = current_tracing()
        if tracing is None:
            return await self._place_of(message, sends)
        with tracing.sending("send", [message], self.client_id):
            return await self._place_of(message, sends)

    async def send_many(self, messages: Iterable[Message]) -> list[LogPosition]:
        """Sends messages; each is stored independently.

        Returns:
            Their positions or delivery times, in the order of the call; see send.

        Raises:
            BatchRefused: Some were refused or are unconfirmed; it names them, and has the positions of the others.
                Resent under its ``message_ids`` each is stored once.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: As for send; nothing was sent.
        """
        self._begin()
        encoded = [to_wire(message, sent_id(message.message_id)) for message in as_messages(messages)]
        tracing = current_tracing()
        if tracing is None or not encoded:
            return await self._places_of(encoded)
        with tracing.sending("send", encoded, self.client_id):
            return await self._places_of(encoded)

    async def _places_of(self, encoded: list[message_pb2.Message]) -> list[LogPosition]:
        sends = [self._place_of(message, self._ordered_sends) for message in encoded]
        outcomes = await outcomes_of(sends, _as_it_is)
        positions = [outcome for outcome in outcomes if isinstance(outcome, LogPosition)]
        if len(positions) < len(outcomes):
            first = next(outcome for outcome in outcomes if isinstance(outcome, HalfmqError))
            missing = len(outcomes) - len(positions)
            msg = f"{missing} of {len(outcomes)} messages were not sent; the first of them: {first}; see .outcomes"
            raise BatchRefused(msg, outcomes, [message.message_id for message in encoded])
        return positions

    async def send_and_ack(
        self, messages: Message | Iterable[Message], received: Received | Iterable[Received]
    ) -> list[LogPosition]:
        """Sends messages and acknowledges those that they were made from, in one step: all of it, or nothing.

        So what is read, transformed and sent on is sent on once, whatever dies in between: until this call took
        effect the received messages are delivered again, and after it they are not.

        Args:
            messages: What to send; one message or several. All are stored, or none is.
            received: What a consumer of the same brokers received; it need not be acked any more.

        Returns:
            The positions or delivery times of the messages, in the order of the call; see send.

        Raises:
            RequestRefused: A message was refused, or a lease has ended, so that its message was, or will be, delivered
                again (``RECEIPT_STALE``, ``RECEIPT_GONE``). Nothing was stored, nothing acknowledged.
            BrokerUnavailable: No broker answered in time; it may or may not have happened, and nothing is to be done:
                what was not acknowledged is delivered again.
            BrokerFailed: The same, because a broker failed to process it.
            TypeError: An argument is of the wrong type.
            ValueError: As for send.
        """
        self._begin()
        encoded = [to_wire(message, sent_id(message.message_id)) for message in as_messages(messages)]
        inputs = as_received(received)
        request = producer_pb2.SendAndAckRequest(
            messages=encoded, receipt_handles=[each.receipt_handle for each in inputs]
        )
        tracing = current_tracing()
        if tracing is None or not encoded:
            response = await self._link.call(lambda broker: broker.producer.SendAndAck, request)
        else:
            with tracing.sending("send", request.messages, self.client_id):
                response = await self._link.call(lambda broker: broker.producer.SendAndAck, request)
        for each in inputs:
            each.settled_elsewhere()
        return [_position(result) for result in response.results]

    async def recall(self, message_ids: str | Iterable[str]) -> list[datetime]:
        """Recalls scheduled messages: no consumer will get them. Safe to repeat.

        Args:
            message_ids: Identity of one message or of several, as returned by send, commit or the transaction.

        Returns:
            When each was recalled (database time, UTC), in the order of the call.

        Raises:
            RecallRefused: The one message is in the log already, was never committed, or is unknown.
            BatchRecallRefused: Some of several messages could not be recalled; it names them.
            BrokerUnavailable: No broker answered in time; the one message may or may not have been recalled.
            TypeError: It is neither a text nor several.
            ValueError: An id is malformed.
        """
        self._begin()
        if not isinstance(message_ids, str | Iterable):
            msg = f"message_ids is the id of a message, or several ids, not {message_ids!r}"
            raise TypeError(msg)
        listed = [message_ids] if isinstance(message_ids, str) else list(message_ids)
        for one in listed:
            plausible_id("a message id", one)
        asked = [ask(self._recalls, self._link.retry, one, len(one) + 2) for one in listed]
        outcomes = await outcomes_of(asked, _recalled_at)
        times = [outcome for outcome in outcomes if isinstance(outcome, datetime)]
        if len(times) == len(outcomes):
            return times
        for one, outcome in zip(listed, outcomes, strict=True):
            if isinstance(outcome, RecallRefused):
                outcome.message_id = one
        first = next(outcome for outcome in outcomes if isinstance(outcome, HalfmqError))
        if len(outcomes) == 1:
            raise first
        missing = len(outcomes) - len(times)
        msg = f"{missing} of {len(outcomes)} messages were not recalled; the first of them: {first}; see .outcomes"
        raise BatchRecallRefused(msg, outcomes)

    def _begin(self) -> None:
        self._refuse_if_closed()
        self._link.bind()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            msg = f"this {type(self).__name__} is closed; make a new one"
            raise ClientClosed(msg)

    async def _drain(self) -> None:
        await self._sends.drain()
        await self._ordered_sends.drain()
        await self._recalls.drain()

    async def _place_of(
        self, message: message_pb2.Message, sends: Batcher[message_pb2.Message, producer_pb2.SendResult]
    ) -> LogPosition:
        order = (message.topic, message.message_group) if message.message_group else None
        try:
            return _position(await ask(sends, self._link.retry, message, message.ByteSize() + 4, order=order))
        except HalfmqError as error:
            # A separate error: that of a request is shared by all of its messages.
            raise type(error)(
                str(error), code=error.code, reason=error.reason, field=error.field, message_ids=(message.message_id,)
            ) from error

    async def _send_messages(self, messages: list[message_pb2.Message], _: str) -> Sequence[producer_pb2.SendResult]:
        request = producer_pb2.SendRequest(messages=messages)
        return (await self._link.call(lambda broker: broker.producer.Send, request)).results

    async def _send_recalls(self, ids: list[str], _: str) -> Sequence[producer_pb2.RecallResult]:
        request = producer_pb2.RecallRequest(message_ids=ids)
        return (await self._link.call(lambda broker: broker.producer.Recall, request)).results


def _as_it_is(place: LogPosition) -> LogPosition:
    return place


def _position(result: producer_pb2.SendResult) -> LogPosition:
    if result.HasField("error"):
        raise as_item_error(result.error)
    return LogPosition.of(result.position, duplicate=result.duplicate)


def _recalled_at(result: producer_pb2.RecallResult) -> datetime:
    if not result.HasField("error"):
        return result.recalled_at.ToDatetime(UTC)
    plain = as_item_error(result.error)
    if not isinstance(plain, RequestRefused):
        raise plain
    raise RecallRefused(str(plain), code=plain.code, reason=plain.reason, field=plain.field)
