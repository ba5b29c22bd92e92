"""What the services ask of the storage: the ports, one for each kind of thing that is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.domain.check_policy import CheckPolicy
    from broker.domain.columns import LogColumns
    from broker.domain.filters import Filter
    from broker.domain.group import ConsumerGroup, GroupSettings
    from broker.domain.message import LogMessage
    from broker.domain.topic import QueueState, Topic, TopicChange, TopicSettings
    from broker.errors import BrokerError
    from broker.services.queue_slice import QueueMeasure, QueueSlice
    from broker.services.timeline import TimelineEvent
    from broker.services.work import (
        AckOutcome,
        CheckAnswer,
        Claimed,
        ClaimedCheck,
        ClaimWork,
        DeadLetterPage,
        DeadLetterSearch,
        Duplicate,
        Epoch,
        EpochCommitted,
        FoundMessage,
        FoundPage,
        GroupNews,
        JoinWork,
        MessageSearch,
        Place,
        PrepareWork,
        Queue,
        RecallWork,
        ReceiptOutcome,
        Redriven,
        SendWork,
        Settling,
        SinkState,
        SinkWork,
        TransactionDetail,
        TransactionFilter,
        TransactionOutcome,
        TransactionSummary,
        VerdictWork,
    )


class TransactionStore(Protocol):
    """Half messages, op records, checks."""

    async def prepare(self, work: Sequence[PrepareWork]) -> list[TransactionOutcome | BrokerError]:
        """Stores half messages; one outcome per item."""
        ...

    async def decide(self, work: Sequence[VerdictWork]) -> list[TransactionOutcome | BrokerError]:
        """Records verdicts and releases or drops the half messages; one outcome per item."""
        ...

    async def producer_group_id(self, name: str) -> int:
        """The number of a producer group; it is made when new."""
        ...

    async def claim_checks(
        self, group_ids: Sequence[int], policy: CheckPolicy, limit: int, due_by: int | None = None
    ) -> list[ClaimedCheck]:
        """Counts checks that are due in these groups (by a time, or now) and returns them to be sent."""
        ...

    async def record_sent(self, check: ClaimedCheck, client_id: str) -> None:
        """Notes which producer a check went to."""
        ...

    async def return_check(self, check: ClaimedCheck) -> None:
        """Takes back the count of a check that could not be sent."""
        ...

    async def record_answer(self, transaction_id: bytes, check_number: int, answer: CheckAnswer) -> None:
        """Notes a producer's answer in the check history."""
        ...

    async def park_exhausted(self, limit: int) -> list[tuple[bytes, str]]:
        """Parks transactions whose last check went unanswered; their ids and producer groups."""
        ...

    async def sweep_decided_halves(self) -> int:
        """Removes half messages that have an op record (a late repetition of Prepare); how many."""
        ...

    async def overdue(self, grace: int) -> list[tuple[str, int]]:
        """Producer groups whose oldest check is overdue by more than `grace` microseconds, and by how much."""
        ...

    async def transaction(self, transaction_id: bytes) -> TransactionDetail | None:
        """All that is known of a transaction."""
        ...

    async def list_transactions(self, wanted: TransactionFilter) -> list[TransactionSummary]:
        """Transactions without a verdict, oldest first."""
        ...

    async def check_again(
        self, transaction_id: bytes, policy: CheckPolicy, operator: str, reason: str
    ) -> TransactionOutcome:
        """Makes a prepared or parked transaction due for checks again."""
        ...


class SinkStore(Protocol):
    """Epochs of sinks."""

    async def prepare_epoch(self, work: SinkWork) -> bool | BrokerError:
        """Stores half messages; whether their epoch is committed already, so that nothing was stored."""
        ...

    async def commit_epoch(self, epoch: Epoch, attempts: Mapping[bytes, int]) -> EpochCommitted:
        """Releases what attempts wrote, so many messages each, and drops what others did."""
        ...

    async def abort_epoch(self, epoch: Epoch) -> bool:
        """Drops the half messages of an epoch; whether it is committed, and was left alone."""
        ...

    async def delete_sink(self, name: str) -> None:
        """Forgets a sink, and drops its half messages that wait."""
        ...

    async def find_sink(self, name: str) -> SinkState:
        """How far a sink is."""
        ...


class LogStore(Protocol):
    """The log."""

    async def send(self, work: Sequence[SendWork]) -> list[Place | Duplicate | BrokerError]:
        """Appends or schedules ordinary messages; where each is."""
        ...

    async def recall(self, work: Sequence[RecallWork]) -> list[int | BrokerError]:
        """Takes back messages that wait for their time; when each was recalled."""
        ...

    async def read_queue(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[list[LogMessage]]:
        """Reads messages from an offset; what a filter does not want is passed over."""
        ...

    async def read_columns(
        self, topic: Topic, queue_no: int, offset: int, limit: int, max_bytes: int, wanted: Filter | None = None
    ) -> QueueSlice[LogColumns]:
        """Reads the same messages by columns."""
        ...

    async def measure_queue(
        self, topic: Topic, queue_no: int, offset: int, end: int | None, max_bytes: int | None
    ) -> QueueMeasure:
        """How many bytes of bodies a part of a queue has, or where it ends to have at most so many."""
        ...

    async def queue_states(self, topic: Topic, group: ConsumerGroup | None) -> list[QueueState]:
        """Where the queues of a topic begin and end."""
        ...

    async def offsets_at(self, topic: Topic, time: int) -> list[int]:
        """For each queue of a topic the first offset that became visible at a time or later."""
        ...

    async def queue_heads(self) -> dict[Queue, int]:
        """Where each queue ends: its next offset. It grows when something is released."""
        ...


class LeaseStore(Protocol):
    """Delivery under leases."""

    async def claim(self, work: Sequence[ClaimWork]) -> list[Claimed | BrokerError]:
        """Hands out messages."""
        ...

    async def settle(self, work: Sequence[Settling]) -> list[ReceiptOutcome | AckOutcome | BrokerError]:
        """Applies acks, nacks and extensions."""
        ...

    async def join(self, work: JoinWork) -> ConsumerGroup:
        """Joins a group; the group to claim for, which in a broadcasting group is the consumer's own."""
        ...

    async def has_leases(self, lease_ids: Sequence[int]) -> bool:
        """Whether some of these leases are open."""
        ...

    async def look_at_groups(self, groups: Mapping[int, Collection[int]]) -> dict[int, GroupNews]:
        """What consumers of some groups should know; groups that were deleted are left out."""
        ...


class CatalogStore(Protocol):
    """Topics and groups."""

    def known_topic(self, name: str) -> Topic | None:
        """A topic seen a moment ago, without asking the database."""
        ...

    def known_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id, without asking the database."""
        ...

    def forget_topics(self, names: Sequence[str]) -> None:
        """Has these topics looked up anew."""
        ...

    async def find_topic(self, name: str) -> Topic | None:
        """A topic by name."""
        ...

    async def find_topic_name(self, topic_id: int) -> str:
        """The name of a topic by its id; empty when it was deleted."""
        ...

    async def find_topic_of_queue(self, queue_id: int) -> tuple[Topic, int] | None:
        """Topic and queue number of a queue id."""
        ...

    async def find_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group by name."""
        ...

    async def create_topic(self, name: str, settings: TopicSettings) -> Topic:
        """Creates a topic; AlreadyExists when the name is taken."""
        ...

    async def update_topic(self, topic: Topic, change: TopicChange) -> Topic:
        """Changes a topic; how it is then."""
        ...

    async def list_topics(self, after: str, limit: int) -> list[Topic]:
        """Topics by name."""
        ...

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic; Refused while half messages, scheduled messages or leases refer to it."""
        ...


class QueryStore(Protocol):
    """Finding messages."""

    async def find_message(self, transaction_id: bytes, position: int) -> FoundMessage | None:
        """A message by its identity, wherever it is."""
        ...

    async def find_messages(self, search: MessageSearch) -> FoundPage:
        """Messages of a topic by key, by time, or both."""
        ...

    async def deliveries_of(self, queue_id: int, offset: int) -> list[TimelineEvent]:
        """What consumers did with a message, in order."""
        ...


class GroupStore(Protocol):
    """Consumer groups."""

    async def create_group(
        self, name: str, settings: GroupSettings, dead_letters: TopicSettings, *, most: int | None = None
    ) -> ConsumerGroup:
        """Creates a consumer group and its dead letter topic; AlreadyExists when the name is taken.

        Refused where there are `most` groups.
        """
        ...

    async def update_group(self, group: ConsumerGroup, changes: dict[str, Any]) -> ConsumerGroup:
        """Changes settings, by the names of GroupSettings."""
        ...

    async def pause_group(self, group: ConsumerGroup, *, paused: bool, reason: str) -> ConsumerGroup:
        """Stops handing out messages, or goes on."""
        ...

    async def set_filter(self, group: ConsumerGroup, topic: Topic, wanted: Filter | None) -> ConsumerGroup:
        """Sets or takes away the group's filter of a topic."""
        ...

    async def filters_of(self, group: ConsumerGroup) -> list[tuple[str, Filter]]:
        """The filters of a group, by the name of the topic."""
        ...

    async def commit_offsets(self, group: ConsumerGroup, topic: Topic, offsets: Mapping[int, int]) -> None:
        """Notes how far a group has come that reads by offset, by queue id."""
        ...

    async def seek_group(
        self, group: ConsumerGroup, queue_ids: Sequence[int], *, to: int | None, offset: int | None
    ) -> None:
        """Moves a group to another place of some queues, and forgets what was handed out there."""
        ...

    async def find_dead_letters(self, search: DeadLetterSearch) -> DeadLetterPage:
        """Dead letters of a group, oldest first."""
        ...

    async def redrive(self, search: DeadLetterSearch, *, republish: bool) -> Redriven:
        """Delivers some dead letters to their group again."""
        ...

    async def list_groups(self, after: str, limit: int) -> list[ConsumerGroup]:
        """Consumer groups by name."""
        ...

    async def delete_group(self, group: ConsumerGroup) -> None:
        """Deletes a consumer group with its progress and leases."""
        ...

    async def group_progress(self, group: ConsumerGroup) -> list[QueueState]:
        """How far a group has come in every queue it joined."""
        ...


class Storage(TransactionStore, SinkStore, LogStore, LeaseStore, CatalogStore, QueryStore, GroupStore, Protocol):
    """All of it, as one database gives it."""
