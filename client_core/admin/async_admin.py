"""The asynchronous admin client; the synchronous one runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from client_core.admin.cluster import AsyncCluster
from client_core.admin.configuration import ConfigurationChange, Document, Found, exported, make, plan
from client_core.admin.groups import ExhaustedPolicy, GroupInfo, GroupMode, GroupProgress
from client_core.admin.topics import Compression, QueueInfo, TopicInfo, compression_to_wire, optional_duration
from client_core.arguments import check_kind, check_number, check_text
from client_core.connection import text_of_reason
from client_core.errors import RequestRefused
from client_core.filters import filter_to_wire
from client_core.positions import position_to_wire
from client_core.times import as_durations
from halfmq.v1 import admin_pb2 as pb
from halfmq.v1 import consumer_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterable, Sequence

    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition
    from client_core.times import Span

__all__ = ["AsyncAdmin"]

_PAGE = 1000
_TOPIC, _GROUP = "is the name of a topic", "is the name of a consumer group"


class AsyncAdmin(AsyncCluster):
    """Creates, changes and deletes topics and consumer groups, and inspects messages.

    Use it with ``async with``, or call ``close()`` when done. It belongs to the event loop of its first call.

    Every call may raise RequestRefused when the broker refuses it (``reason`` says why, such as ``TOPIC_NOT_FOUND``),
    BrokerUnavailable when no broker answered in time, BrokerFailed when one failed to process it, and TypeError or
    ValueError for an invalid argument. Calls are retried automatically: one that creates or deletes, and whose answer
    was lost, may then be refused because its work is done; ``exist_ok`` and ``missing_ok`` treat that as success.
    """

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention: Span | None = None,
        retention_bytes: int = 0,
        dedup_window: Span | None = None,
        priority_levels: int | None = None,
        compression: Compression | None = None,
        cell: str = "",
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Creates a topic.

        Args:
            topic: Its name.
            queues: Number of queues for messages without a priority; None: the broker's default.
            retention: How long messages are kept, in seconds or as a timedelta; None: the broker's default.
            retention_bytes: Bytes of bodies that are kept, at most; 0: no limit.
            dedup_window: How long other messages with the same dedup_key are rejected; None: one day.
            priority_levels: Number of priorities; None: 1.
            compression: How the broker stores the bodies of its messages; None: uncompressed.
            cell: Where it is to be, of a broker with several databases: the name of a cell, or "*" for the one with the
                fewest bytes. Empty: the home database.
            exist_ok: Take one that exists, whatever its settings.
        """
        check_text("topic", topic, _TOPIC)
        check_kind("cell", cell, str)
        check_kind("compression", compression, Compression)
        wanted = pb.Topic(
            name=topic,
            queue_count=check_number("queues", queues, least=1) or 0,
            retention=optional_duration("retention", retention),
            retention_bytes=check_number("retention_bytes", retention_bytes, bits=63) or 0,
            dedup_window=optional_duration("dedup_window", dedup_window),
            priority_levels=check_number("priority_levels", priority_levels, least=1) or 0,
            compression=compression_to_wire(compression),
        )
        try:
            created = await self._link.call(
                lambda broker: broker.admin.CreateTopic, pb.CreateTopicRequest(topic=wanted, cell=cell)
            )
        except RequestRefused as error:
            if not exist_ok or error.code is not grpc.StatusCode.ALREADY_EXISTS:
                raise
            return await self.get_topic(topic)
        return TopicInfo.of(created.topic)

    async def get_topic(self, topic: str) -> TopicInfo:
        """Returns a topic's settings."""
        return TopicInfo.of((await self._describe_topic(topic)).topic)

    async def topic_queues(self, topic: str) -> list[QueueInfo]:
        """Returns a topic's queues, by number."""
        return [QueueInfo.of(queue) for queue in (await self._describe_topic(topic)).queues]

    def list_topics(self) -> AsyncGenerator[TopicInfo, None]:
        """Iterates over all topics, by name; dead letter topics are among them."""
        return self._paged(
            pb.ListTopicsRequest(page_size=_PAGE),
            lambda broker: broker.admin.ListTopics,
            lambda page: [TopicInfo.of(topic) for topic in page.topics],
        )

    async def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention: Span | None = None,
        retention_bytes: int | None = None,
        dedup_window: Span | None = None,
        compression: Compression | None = None,
    ) -> TopicInfo:
        """Changes a topic while it is in use; what is None stays as it is. The number of queues can only grow."""
        check_text("topic", topic, _TOPIC)
        check_kind("compression", compression, Compression)
        request = pb.UpdateTopicRequest(
            topic=topic,
            queue_count=check_number("queues", queues, least=1),
            retention=optional_duration("retention", retention),
            retention_bytes=check_number("retention_bytes", retention_bytes, bits=63),
            dedup_window=optional_duration("dedup_window", dedup_window),
            compression=compression_to_wire(compression),
        )
        return TopicInfo.of((await self._link.call(lambda broker: broker.admin.UpdateTopic, request)).topic)

    async def delete_topic(self, topic: str, *, missing_ok: bool = False) -> None:
        """Deletes a topic and its messages; refused while half messages, scheduled ones or leases refer to it."""
        check_text("topic", topic, _TOPIC)
        request = pb.DeleteTopicRequest(topic=topic)
        deleting = self._link.call(lambda broker: broker.admin.DeleteTopic, request)
        await _unless_missing(deleting, missing_ok)

    async def create_group(
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
        cell: str = "",
        exist_ok: bool = False,
    ) -> GroupInfo:
        """Creates a consumer group.

        Args:
            group: Its name.
            max_attempts: Deliveries of a message before it becomes a dead letter; None: 17.
            retry_delays: How long to wait after the first, second ... failed delivery, in seconds or as timedeltas; the
                last applies to all later ones. Empty: the broker's default.
            when_exhausted: What happens to a message after its last attempt; None: it goes to the dead letters.
            mode: Whether its consumers share the messages; cannot be changed later. None: they do.
            start: Where it starts in topics that it never read; None: earliest, for a broadcasting group latest.
            keep_unread: Whether retention keeps messages that it has not handled, in queues that it read before.
            fifo: Whether push consumers among RocketMQ's clients get the messages of a message group in batches, and
                keep their order themselves; otherwise they get each one when the previous one is settled.
            cell: The cell of the topics that it is to read, of a broker with several databases. Empty: the home
                database.
            exist_ok: Take one that exists, whatever its settings.
        """
        check_text("group", group, _GROUP)
        check_kind("cell", cell, str)
        check_kind("when_exhausted", when_exhausted, ExhaustedPolicy)
        check_kind("mode", mode, GroupMode)
        wanted = pb.ConsumerGroup(
            name=group,
            max_attempts=check_number("max_attempts", max_attempts, least=1) or 0,
            retry_delays=as_durations("retry_delays", retry_delays),
            when_exhausted=_policy(when_exhausted),
            mode=pb.GROUP_MODE_UNSPECIFIED if mode is None else pb.GroupMode.ValueType(mode),
            start=None if start is None else position_to_wire("start", start),
            keep_unread=keep_unread,
            fifo=fifo,
        )
        try:
            created = await self._link.call(
                lambda broker: broker.admin.CreateGroup, pb.CreateGroupRequest(group=wanted, cell=cell)
            )
        except RequestRefused as error:
            if not exist_ok or error.code is not grpc.StatusCode.ALREADY_EXISTS:
                raise
            return await self.get_group(group)
        return GroupInfo.of(created.group)

    async def get_group(self, group: str) -> GroupInfo:
        """Returns a consumer group's settings."""
        return GroupInfo.of((await self._describe(group)).group)

    def list_groups(self) -> AsyncGenerator[GroupInfo, None]:
        """Iterates over all consumer groups, by name."""
        return self._paged(
            pb.ListGroupsRequest(page_size=_PAGE),
            lambda broker: broker.admin.ListGroups,
            lambda page: [GroupInfo.of(group) for group in page.groups],
        )

    async def update_group(
        self,
        group: str,
        *,
        max_attempts: int | None = None,
        retry_delays: Sequence[Span] | None = None,
        when_exhausted: ExhaustedPolicy | None = None,
        keep_unread: bool | None = None,
        fifo: bool | None = None,
    ) -> GroupInfo:
        """Changes a consumer group while it is in use; what is None stays. No retry delays: the broker's default."""
        check_text("group", group, _GROUP)
        check_kind("when_exhausted", when_exhausted, ExhaustedPolicy)
        delays = None if retry_delays is None else pb.RetryDelays(delays=as_durations("retry_delays", retry_delays))
        request = pb.UpdateGroupRequest(
            group=group,
            max_attempts=check_number("max_attempts", max_attempts, least=1),
            retry_delays=delays,
            when_exhausted=_policy(when_exhausted),
            keep_unread=keep_unread,
            fifo=fifo,
        )
        return GroupInfo.of((await self._link.call(lambda broker: broker.admin.UpdateGroup, request)).group)

    async def delete_group(self, group: str, *, missing_ok: bool = False) -> None:
        """Deletes a consumer group with its progress and leases; its consumers end with SubscriptionRefused."""
        check_text("group", group, _GROUP)
        request = pb.DeleteGroupRequest(group=group)
        deleting = self._link.call(lambda broker: broker.admin.DeleteGroup, request)
        await _unless_missing(deleting, missing_ok)

    async def pause_group(self, group: str, reason: str = "") -> GroupInfo:
        """Pauses delivery to a group; delivered messages may still be settled. The reason is recorded."""
        return await self._pause(group, resume=False, reason=reason)

    async def resume_group(self, group: str) -> GroupInfo:
        """Resumes delivery to a group."""
        return await self._pause(group, resume=True)

    async def seek_group(
        self, group: str, topic: str, to: StartPosition | int, *, queue: int | None = None
    ) -> list[GroupProgress]:
        """Moves a group to another position, also while it runs; its consumers lose the messages that they hold.

        Args:
            group: Its name.
            topic: Topic to move it in.
            to: "earliest", "latest", a time with its time zone, or an offset of the one queue.
            queue: Only this queue; None: all queues of the topic.

        Returns:
            The group's progress in the topic now.
        """
        check_text("group", group, _GROUP)
        check_text("topic", topic, _TOPIC)
        place = position_to_wire("to", to, offsets=queue is not None)
        request = pb.SeekGroupRequest(group=group, topic=topic, queue=check_number("queue", queue), to=place)
        response = await self._link.call(lambda broker: broker.admin.SeekGroup, request)
        return [GroupProgress.of(progress) for progress in response.progress]

    async def set_filter(self, group: str, topic: str, filter: MessageFilter | None) -> GroupInfo:  # noqa: A002
        """Sets a group's filter of a topic from now on; None: all messages. Messages skipped before stay skipped."""
        check_text("group", group, _GROUP)
        check_text("topic", topic, _TOPIC)
        wanted = consumer_pb2.TopicFilter(topic=topic, filter=filter_to_wire("filter", filter))
        request = pb.SetFilterRequest(group=group, filter=wanted)
        return GroupInfo.of((await self._link.call(lambda broker: broker.admin.SetFilter, request)).group)

    async def group_progress(self, group: str, topic: str | None = None) -> list[GroupProgress]:
        """Returns a group's progress in every queue it ever read, or in those of one topic."""
        progress = [GroupProgress.of(each) for each in (await self._describe(group)).progress]
        return [each for each in progress if topic is None or each.topic == topic]

    async def export_configuration(self, *, rights: bool = True) -> dict[str, Any]:
        """Returns topics, groups, filters, rules and quotas as a document; without dead letter topics.

        Args:
            rights: Rules and quotas, too; otherwise the document has no such sections.

        Returns:
            What YAML and JSON can hold; apply_configuration takes it.
        """
        document = exported(await self._configuration(rights=rights))
        return document if rights else {name: document[name] for name in ("topics", "groups")}

    async def plan_configuration(self, document: object, *, prune: bool = False) -> list[ConfigurationChange]:
        """Compares a document with what there is, and changes nothing.

        Args:
            document: As export_configuration returns it. What it does not name stays as it is.
            prune: Delete what its sections do not name; a section that it does not have stays as it is.

        Returns:
            The changes that it asks for, in the order in which they are made; empty when there is none.

        Raises:
            ConfigurationError: It has something unknown, or asks for something impossible; its field says where.
        """
        wanted = Document.read(document)
        rights = wanted.rules is not None or wanted.quotas is not None
        return plan(wanted, await self._configuration(rights=rights), prune=prune)

    async def apply_changes(self, changes: Iterable[ConfigurationChange]) -> AsyncGenerator[ConfigurationChange, None]:
        """Makes planned changes, as it is iterated over; each is returned when it is done."""
        for change in changes:
            await make(self, change)
            yield change

    async def apply_configuration(
        self, document: object, *, prune: bool = False, dry_run: bool = False
    ) -> list[ConfigurationChange]:
        """Makes what a document asks for; repeated, it changes nothing.

        Args:
            document: As export_configuration returns it. What it does not name stays as it is.
            prune: Delete what its sections do not name.
            dry_run: Change nothing.

        Returns:
            The changes that were made, or would be.

        Raises:
            ConfigurationError: It has something unknown, or asks for something impossible; nothing was changed.
        """
        changes = await self.plan_configuration(document, prune=prune)
        if not dry_run:
            async for _ in self.apply_changes(changes):
                pass
        return changes

    async def _configuration(self, *, rights: bool) -> Found:
        return Found.of(
            [topic async for topic in self.list_topics()],
            [group async for group in self.list_groups()],
            await self.list_access_rules() if rights else [],
            await self.list_quotas() if rights else [],
        )

    async def _describe_topic(self, topic: str) -> pb.DescribeTopicResponse:
        check_text("topic", topic, _TOPIC)
        request = pb.DescribeTopicRequest(topic=topic)
        return await self._link.call(lambda broker: broker.admin.DescribeTopic, request)

    async def _describe(self, group: str) -> pb.DescribeGroupResponse:
        check_text("group", group, _GROUP)
        request = pb.DescribeGroupRequest(group=group)
        return await self._link.call(lambda broker: broker.admin.DescribeGroup, request)

    async def _pause(self, group: str, *, resume: bool, reason: str = "") -> GroupInfo:
        check_text("group", group, _GROUP)
        request = pb.PauseGroupRequest(group=group, resume=resume, reason=text_of_reason(reason))
        return GroupInfo.of((await self._link.call(lambda broker: broker.admin.PauseGroup, request)).group)


def _policy(when_exhausted: ExhaustedPolicy | None) -> pb.ExhaustedPolicy.ValueType:
    return pb.EXHAUSTED_POLICY_UNSPECIFIED if when_exhausted is None else pb.ExhaustedPolicy.ValueType(when_exhausted)


async def _unless_missing(deleting: Awaitable[object], missing_ok: bool) -> None:
    try:
        await deleting
    except RequestRefused as error:
        if not missing_ok or error.code is not grpc.StatusCode.NOT_FOUND:
            raise
