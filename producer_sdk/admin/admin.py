"""The synchronous client of operators: the asynchronous one, run on a background event loop."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self, TypeVar

from producer_sdk.admin.async_admin import AsyncAdmin
from producer_sdk.connection import BackgroundRunner
from producer_sdk.errors import ClientClosed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from producer_sdk.admin.groups import ExhaustedPolicy, GroupInfo, GroupMode, GroupProgress
    from producer_sdk.admin.messages import DeadLetter, MessageInfo, RedriveProgress, TimelineEvent
    from producer_sdk.admin.topics import TopicInfo
    from producer_sdk.connection import Endpoint, RetryConfig, Span, TlsConfig
    from producer_sdk.filters import MessageFilter
    from producer_sdk.positions import StartPosition
    from producer_sdk.stored import StoredMessage

__all__ = ["Admin"]

FoundT = TypeVar("FoundT")


class Admin:
    """Creates, changes and deletes topics and consumer groups, and looks after messages; see AsyncAdmin.

    Safe to share between threads. Use it with ``with``, or call ``close()`` in the end.
    """

    def __init__(self, endpoint: Endpoint, *, retry: RetryConfig | None = None, tls: TlsConfig | None = None) -> None:
        """Reads the settings, which are those of AsyncAdmin; nothing is connected yet.

        Raises:
            ConfigurationError: A setting cannot work.
        """
        self._core = AsyncAdmin(endpoint, retry=retry, tls=tls)
        self._runner = BackgroundRunner("Admin")

    def close(self) -> None:
        """Closes the connections. Safe to repeat."""
        try:
            if self._runner.started:
                self._runner.run(self._core.close())
        finally:
            self._runner.close()

    def __enter__(self) -> Self:
        """Does nothing: connections are made by the first call."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the connections."""
        self.close()

    def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention: Span | None = None,
        retention_bytes: int = 0,
        dedup_window: Span | None = None,
        priority_levels: int | None = None,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Creates a topic; see AsyncAdmin.create_topic."""
        return self._runner.run(
            self._core.create_topic(
                topic,
                queues=queues,
                retention=retention,
                retention_bytes=retention_bytes,
                dedup_window=dedup_window,
                priority_levels=priority_levels,
                exist_ok=exist_ok,
            )
        )

    def get_topic(self, topic: str) -> TopicInfo:
        """Tells a topic's settings."""
        return self._runner.run(self._core.get_topic(topic))

    def list_topics(self) -> Iterator[TopicInfo]:
        """Iterates over all topics, by name; see AsyncAdmin.list_topics."""
        return self._each(self._core.list_topics())

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention: Span | None = None,
        retention_bytes: int | None = None,
        dedup_window: Span | None = None,
    ) -> TopicInfo:
        """Changes a topic while it is in use; see AsyncAdmin.update_topic."""
        return self._runner.run(
            self._core.update_topic(
                topic,
                queues=queues,
                retention=retention,
                retention_bytes=retention_bytes,
                dedup_window=dedup_window,
            )
        )

    def delete_topic(self, topic: str, *, missing_ok: bool = False) -> None:
        """Deletes a topic and its messages; see AsyncAdmin.delete_topic."""
        self._runner.run(self._core.delete_topic(topic, missing_ok=missing_ok))

    def create_group(
        self,
        group: str,
        *,
        max_attempts: int | None = None,
        retry_delays: Sequence[Span] = (),
        when_exhausted: ExhaustedPolicy | None = None,
        mode: GroupMode | None = None,
        start: StartPosition | None = None,
        keep_unread: bool = False,
        fifo: bool = False,
        exist_ok: bool = False,
    ) -> GroupInfo:
        """Creates a consumer group; see AsyncAdmin.create_group."""
        return self._runner.run(
            self._core.create_group(
                group,
                max_attempts=max_attempts,
                retry_delays=retry_delays,
                when_exhausted=when_exhausted,
                mode=mode,
                start=start,
                keep_unread=keep_unread,
                fifo=fifo,
                exist_ok=exist_ok,
            )
        )

    def get_group(self, group: str) -> GroupInfo:
        """Tells a consumer group's settings."""
        return self._runner.run(self._core.get_group(group))

    def update_group(
        self,
        group: str,
        *,
        max_attempts: int | None = None,
        retry_delays: Sequence[Span] | None = None,
        when_exhausted: ExhaustedPolicy | None = None,
        keep_unread: bool | None = None,
        fifo: bool | None = None,
    ) -> GroupInfo:
        """Changes a consumer group while it is in use; see AsyncAdmin.update_group."""
        return self._runner.run(
            self._core.update_group(
                group,
                max_attempts=max_attempts,
                retry_delays=retry_delays,
                when_exhausted=when_exhausted,
                keep_unread=keep_unread,
                fifo=fifo,
            )
        )

    def delete_group(self, group: str, *, missing_ok: bool = False) -> None:
        """Deletes a consumer group with its progress and leases; see AsyncAdmin.delete_group."""
        self._runner.run(self._core.delete_group(group, missing_ok=missing_ok))

    def pause_group(self, group: str, reason: str = "") -> GroupInfo:
        """Stops handing out messages to a group; see AsyncAdmin.pause_group."""
        return self._runner.run(self._core.pause_group(group, reason))

    def resume_group(self, group: str) -> GroupInfo:
        """Goes on handing out messages to a group."""
        return self._runner.run(self._core.resume_group(group))

    def seek_group(
        self, group: str, topic: str, to: StartPosition | int, *, queue: int | None = None
    ) -> list[GroupProgress]:
        """Moves a group to another place, also while it runs; see AsyncAdmin.seek_group."""
        return self._runner.run(self._core.seek_group(group, topic, to, queue=queue))

    def set_filter(self, group: str, topic: str, filter: MessageFilter | None) -> GroupInfo:  # noqa: A002
        """Tells which messages of a topic a group wants from now on; see AsyncAdmin.set_filter."""
        return self._runner.run(self._core.set_filter(group, topic, filter))

    def group_progress(self, group: str, topic: str | None = None) -> list[GroupProgress]:
        """Tells how far a group has come in every queue it ever read, or in those of one topic."""
        return self._runner.run(self._core.group_progress(group, topic))

    def list_dead_letters(
        self,
        group: str,
        *,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
    ) -> Iterator[DeadLetter]:
        """Iterates over what a group could not handle, the oldest first."""
        return self._each(self._core.list_dead_letters(group, filter=filter))

    def redrive(
        self,
        group: str,
        *,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
        offsets: Sequence[int] = (),
        republish_expired: bool = False,
    ) -> Iterator[RedriveProgress]:
        """Delivers dead letters to their group again, as it is iterated over; see AsyncAdmin.redrive."""
        return self._each(
            self._core.redrive(group, filter=filter, offsets=offsets, republish_expired=republish_expired)
        )

    def get_message(self, message_id: str) -> MessageInfo:
        """Finds a message by its id, whether it lies in the log or waits."""
        return self._runner.run(self._core.get_message(message_id))

    def find_messages(
        self, topic: str, *, key: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[StoredMessage]:
        """Iterates over messages of a topic; see AsyncAdmin.find_messages."""
        return self._each(self._core.find_messages(topic, key=key, since=since, until=until))

    def timeline(self, message_id: str) -> list[TimelineEvent]:
        """Tells all that happened to a message, in order; see AsyncAdmin.timeline."""
        return self._runner.run(self._core.timeline(message_id))

    def _each(self, source: AsyncGenerator[FoundT, None]) -> Iterator[FoundT]:
        async def step() -> FoundT | None:
            return await anext(source, None)

        try:
            while (found := self._runner.run(step())) is not None:
                yield found
        finally:
            # A client that was closed has ended it already.
            with suppress(ClientClosed):
                self._runner.run(_end(source))


async def _end(source: AsyncGenerator[FoundT, None]) -> None:
    await source.aclose()
