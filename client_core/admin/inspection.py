"""Messages by id or key, their history, and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from client_core.admin.messages import DeadLetter, MessageInfo, PurgeProgress, RedriveProgress, TimelineEvent
from client_core.arguments import check_number, check_text
from client_core.connection import BrokerLink
from client_core.connection.statuses import as_halfmq_error
from client_core.filters import filter_to_wire
from client_core.ids import plausible_id
from client_core.stored import StoredMessage
from client_core.times import as_timestamp
from halfmq.v1 import admin_pb2, query_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import datetime
    from types import TracebackType

    from client_core.connection import Broker, Endpoint, RetryConfig, TlsConfig
    from client_core.filters import MessageFilter

__all__ = ["AsyncInspection"]

FoundT = TypeVar("FoundT")


class AsyncInspection:
    """The part of AsyncAdmin that is about messages."""

    def __init__(self, endpoint: Endpoint, *, retry: RetryConfig | None = None, tls: TlsConfig | None = None) -> None:
        """Reads the settings; nothing is connected yet.

        Args:
            endpoint: Where the brokers listen: ``"host:port"``, several separated by
                commas, a sequence, or a Connection, which has ``retry`` and ``tls`` itself.
            retry: When calls are retried; None: the defaults of RetryConfig.
            tls: How to encrypt; None: not at all.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._link = BrokerLink(endpoint, tls=tls, retry=retry)

    async def close(self) -> None:
        """Closes the connections."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        """Does nothing: connections are made by the first call."""
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connections."""
        await self.close()

    def list_dead_letters(
        self,
        group: str,
        *,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
    ) -> AsyncGenerator[DeadLetter, None]:
        """Iterates over a group's dead letters, the oldest first."""
        check_text("group", group, "is the name of a consumer group")
        request = admin_pb2.ListDeadLettersRequest(group=group, filter=filter_to_wire("filter", filter))
        return self._paged(
            request,
            lambda broker: broker.admin.ListDeadLetters,
            lambda page: [DeadLetter.of(letter) for letter in page.dead_letters],
        )

    def redrive(
        self,
        group: str,
        *,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
        offsets: Sequence[int] = (),
        republish_expired: bool = False,
    ) -> AsyncGenerator[RedriveProgress, None]:
        """Delivers dead letters to their group again, as it is iterated over; each once, even if the call is repeated.

        Args:
            group: Group that could not handle them, and gets them again.
            filter: Only these; None: all.
            offsets: Only these offsets of the dead letter topic; empty: all.
            republish_expired: Where the original is past retention, append a copy to its topic, which all groups of
                the topic get.

        Returns:
            Iterates over its progress. The last one has ``done``; stopping before leaves the rest unchanged.
        """
        check_text("group", group, "is the name of a consumer group")
        request = admin_pb2.RedriveDeadLettersRequest(
            group=group, filter=filter_to_wire("filter", filter), republish_expired=republish_expired
        )
        for offset in offsets:
            request.offsets.append(check_number("offsets", offset, bits=63) or 0)
        return self._progress(lambda broker: broker.admin.RedriveDeadLetters, request, RedriveProgress.of)

    def purge_dead_letters(
        self,
        group: str,
        *,
        before_offset: int | None = None,
        before: datetime | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[PurgeProgress, None]:
        """Deletes a group's oldest dead letters, as it is iterated over; without a limit all that are there now.

        Args:
            group: Group that could not handle them.
            before_offset: Only those below this offset of the dead letter topic.
            before: Only those that became dead letters before this time; with its time zone.
            dry_run: Only count them.

        Returns:
            Iterates over its progress. The last one has ``done``; stopping before leaves the rest.
        """
        check_text("group", group, "is the name of a consumer group")
        request = admin_pb2.PurgeDeadLettersRequest(group=group, dry_run=dry_run)
        if before_offset is not None:
            request.before_offset = check_number("before_offset", before_offset, bits=63) or 0
        if before is not None:
            request.before.CopyFrom(as_timestamp("before", before))
        return self._progress(lambda broker: broker.admin.PurgeDeadLetters, request, PurgeProgress.of)

    async def get_message(self, message_id: str) -> MessageInfo:
        """Finds a message by its id, whether it is in the log or not yet visible."""
        request = query_pb2.GetMessageRequest(message_id=plausible_id("a message id", message_id))
        return MessageInfo.of(await self._link.call(lambda broker: broker.query.GetMessage, request))

    def find_messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        queue: int | None = None,
        offset: int | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
    ) -> AsyncGenerator[StoredMessage, None]:
        """Iterates over messages of a topic, the oldest first within each queue.

        Args:
            topic: The topic.
            key: Only those with this key; None: any.
            since: Only those that became visible at this time or later; with its time zone.
            until: Only those that became visible before this time; with its time zone.
            queue: Only those of this queue; None: of all.
            offset: Only those from this offset of the queue on; None: from the first one kept.
            filter: Only these; None: all.
        """
        check_text("topic", topic, "is the name of a topic")
        request = query_pb2.FindMessagesRequest(topic=topic, filter=filter_to_wire("filter", filter))
        if key is not None:
            check_text("key", key, "is a key of messages")
            request.key = key
        if since is not None:
            # A Python keyword, so not accessible as an attribute.
            getattr(request, "from").CopyFrom(as_timestamp("since", since))
        if until is not None:
            request.until.CopyFrom(as_timestamp("until", until))
        if queue is not None:
            request.queue = check_number("queue", queue, bits=31) or 0
        if offset is not None:
            request.offset = check_number("offset", offset, bits=63) or 0
        return self._paged(
            request,
            lambda broker: broker.query.FindMessages,
            lambda page: [StoredMessage(message) for message in page.messages],
        )

    async def timeline(self, message_id: str) -> list[TimelineEvent]:
        """Returns all events of a message, in order; deliveries are kept for a day by default."""
        request = query_pb2.GetTimelineRequest(message_id=plausible_id("a message id", message_id))
        response = await self._link.call(lambda broker: broker.query.GetTimeline, request)
        return [TimelineEvent.of(event) for event in response.events]

    async def _paged(
        self,
        request: Any,
        method: Callable[[Broker], grpc.aio.UnaryUnaryMultiCallable[Any, Any]],
        read: Callable[[Any], list[FoundT]],
    ) -> AsyncGenerator[FoundT, None]:
        while True:
            page = await self._link.call(method, request)
            for found in read(page):
                yield found
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def _progress(
        self,
        method: Callable[[Broker], grpc.aio.UnaryStreamMultiCallable[Any, Any]],
        request: Any,
        read: Callable[[Any], FoundT],
    ) -> AsyncGenerator[FoundT, None]:
        async def begin(broker: Broker, _: float) -> tuple[Any, Any, Any]:
            # No deadline: the duration depends on the amount of work.
            stream = method(broker)(request)
            responses = aiter(stream)
            return stream, responses, await anext(responses, None)

        call, responses, first = await self._link.attempt(begin)
        try:
            if first is not None:
                yield read(first)
            async for response in responses:
                yield read(response)
        except grpc.aio.AioRpcError as error:
            raise as_halfmq_error(error) from error
        finally:
            call.cancel()
