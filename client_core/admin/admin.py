"""The synchronous admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from client_core.admin.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from client_core.admin.access import AccessRule, AuditOutcome, AuditRecord, Quota
    from client_core.admin.groups import ExhaustedPolicy, GroupInfo, GroupMode, GroupProgress
    from client_core.admin.messages import DeadLetter, MessageInfo, PurgeProgress, RedriveProgress, TimelineEvent
    from client_core.admin.topics import Compression, QueueInfo, TopicInfo
    from client_core.filters import MessageFilter
    from client_core.positions import StartPosition
    from client_core.stored import StoredMessage
    from client_core.times import Span

__all__ = ["Admin"]


class Admin(Operations):
    """Creates, changes and deletes topics and consumer groups, and inspects messages.

    Safe to share between threads. Use it with ``with``, or call ``close()`` when done.

    Every call may raise RequestRefused when the broker refuses it (``reason`` says why, such as ``TOPIC_NOT_FOUND``),
    BrokerUnavailable when no broker answered in time, BrokerFailed when one failed to process it, and TypeError or
    ValueError for an invalid argument. Calls are retried automatically: one that creates or deletes, and whose answer
    was lost, may then be refused because its work is done; ``exist_ok`` and ``missing_ok`` treat that as success.
    """

    def create_topic(
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
        return self._runner.run(
            self._core.create_topic(
                topic,
                queues=queues,
                retention=retention,
                retention_bytes=retention_bytes,
                dedup_window=dedup_window,
                priority_levels=priority_levels,
                compression=compression,
                cell=cell,
                exist_ok=exist_ok,
            )
        )

    def get_topic(self, topic: str) -> TopicInfo:
        """Returns a topic's settings."""
        return self._runner.run(self._core.get_topic(topic))

    def topic_queues(self, topic: str) -> list[QueueInfo]:
        """Returns a topic's queues, by number."""
        return self._runner.run(self._core.topic_queues(topic))

    def list_topics(self) -> Iterator[TopicInfo]:
        """Iterates over all topics, by name; dead letter topics are among them."""
        return self._each(self._core.list_topics())

    def update_topic(
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
        return self._runner.run(
            self._core.update_topic(
                topic,
                queues=queues,
                retention=retention,
                retention_bytes=retention_bytes,
                dedup_window=dedup_window,
                compression=compression,
            )
        )

    def delete_topic(self, topic: str, *, missing_ok: bool = False) -> None:
        """Deletes a topic and its messages; refused while half messages, scheduled ones or leases refer to it."""
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
                cell=cell,
                exist_ok=exist_ok,
            )
        )

    def get_group(self, group: str) -> GroupInfo:
        """Returns a consumer group's settings."""
        return self._runner.run(self._core.get_group(group))

    def list_groups(self) -> Iterator[GroupInfo]:
        """Iterates over all consumer groups, by name."""
        return self._each(self._core.list_groups())

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
        """Changes a consumer group while it is in use; what is None stays. No retry delays: the broker's default."""
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
        """Deletes a consumer group with its progress and leases; its consumers end with SubscriptionRefused."""
        self._runner.run(self._core.delete_group(group, missing_ok=missing_ok))

    def pause_group(self, group: str, reason: str = "") -> GroupInfo:
        """Pauses delivery to a group; delivered messages may still be settled. The reason is recorded."""
        return self._runner.run(self._core.pause_group(group, reason))

    def resume_group(self, group: str) -> GroupInfo:
        """Resumes delivery to a group."""
        return self._runner.run(self._core.resume_group(group))

    def seek_group(
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
        return self._runner.run(self._core.seek_group(group, topic, to, queue=queue))

    def set_filter(self, group: str, topic: str, filter: MessageFilter | None) -> GroupInfo:  # noqa: A002
        """Sets a group's filter of a topic from now on; None: all messages. Messages skipped before stay skipped."""
        return self._runner.run(self._core.set_filter(group, topic, filter))

    def group_progress(self, group: str, topic: str | None = None) -> list[GroupProgress]:
        """Returns a group's progress in every queue it ever read, or in those of one topic."""
        return self._runner.run(self._core.group_progress(group, topic))

    def list_dead_letters(
        self,
        group: str,
        *,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
    ) -> Iterator[DeadLetter]:
        """Iterates over a group's dead letters, the oldest first."""
        return self._each(self._core.list_dead_letters(group, filter=filter))

    def redrive(
        self,
        group: str,
        *,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere
        offsets: Sequence[int] = (),
        republish_expired: bool = False,
    ) -> Iterator[RedriveProgress]:
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
        return self._each(
            self._core.redrive(group, filter=filter, offsets=offsets, republish_expired=republish_expired)
        )

    def purge_dead_letters(
        self,
        group: str,
        *,
        before_offset: int | None = None,
        before: datetime | None = None,
        dry_run: bool = False,
    ) -> Iterator[PurgeProgress]:
        """Deletes a group's oldest dead letters, as it is iterated over; without a limit all that are there now.

        Args:
            group: Group that could not handle them.
            before_offset: Only those below this offset of the dead letter topic.
            before: Only those that became dead letters before this time; with its time zone.
            dry_run: Only count them.

        Returns:
            Iterates over its progress. The last one has ``done``; stopping before leaves the rest.
        """
        return self._each(
            self._core.purge_dead_letters(group, before_offset=before_offset, before=before, dry_run=dry_run)
        )

    def get_message(self, message_id: str) -> MessageInfo:
        """Finds a message by its id, whether it is in the log or not yet visible."""
        return self._runner.run(self._core.get_message(message_id))

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
    ) -> Iterator[StoredMessage]:
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
        return self._each(
            self._core.find_messages(
                topic, key=key, since=since, until=until, queue=queue, offset=offset, filter=filter
            )
        )

    def timeline(self, message_id: str) -> list[TimelineEvent]:
        """Returns all events of a message, in order; deliveries are kept for a day by default."""
        return self._runner.run(self._core.timeline(message_id))

    def grant_access(
        self,
        subject: str,
        actions: Sequence[str],
        kind: str,
        pattern: str,
        *,
        deny: bool = False,
        sources: Sequence[str] = (),
        replace: bool = False,
    ) -> AccessRule:
        """Adds a rule; one that is the same but for its actions is replaced by one with the actions of both.

        Args:
            subject: Whom it is about: ``user:name``, ``user:*`` for everybody who is known, or ``role:name``.
            actions: Rights or actions, such as ``produce`` or ``PUB``.
            kind: Kind of the resource: ``topic``, ``group``, ``sink``, ``cluster``, or ``*`` for all.
            pattern: Its name, the beginning of one with ``*`` behind it, or ``*``.
            deny: Deny instead of allowing.
            sources: Networks that the call has to come from, such as ``10.1.0.0/16``; empty: any.
            replace: Leave such a rule only these actions, at once.

        Returns:
            The rule as it is now; all brokers know it within a second.
        """
        granting = self._core.grant_access(subject, actions, kind, pattern, deny=deny, sources=sources, replace=replace)
        return self._runner.run(granting)

    def revoke_access(self, rule_ids: Sequence[int]) -> list[AccessRule]:
        """Removes rules by their numbers; returns those that were there."""
        return self._runner.run(self._core.revoke_access(rule_ids))

    def list_access_rules(self) -> list[AccessRule]:
        """Returns all rules, in the order in which they were granted."""
        return self._runner.run(self._core.list_access_rules())

    def set_quota(self, quota: Quota) -> Quota:
        """Sets what a tenant may use, as a whole; a quota without any limit removes it."""
        return self._runner.run(self._core.set_quota(quota))

    def list_quotas(self) -> list[Quota]:
        """Returns all quotas, by tenant."""
        return self._runner.run(self._core.list_quotas())

    def list_audit_records(
        self,
        *,
        principal: str | None = None,
        call: str | None = None,
        resource: str | None = None,
        outcome: AuditOutcome | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        oldest_first: bool = False,
    ) -> Iterator[AuditRecord]:
        """Iterates over records of who did what, the newest first; what is None is not looked at.

        Args:
            principal: Only those of this one.
            call: Only those of this call, such as ``AdminService/DeleteTopic``.
            resource: Only those about this, such as ``topic orders``.
            outcome: Only those with this outcome.
            since: Only those from this time on; with its time zone.
            until: Only those before this time; with its time zone.
            oldest_first: The oldest first instead.
        """
        return self._each(
            self._core.list_audit_records(
                principal=principal,
                call=call,
                resource=resource,
                outcome=outcome,
                since=since,
                until=until,
                oldest_first=oldest_first,
            )
        )
