"""Brokers, their clients, and the lag of all groups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from client_core.admin.transactions import AsyncTransactions
from client_core.arguments import check_kind, check_text
from client_core.times import as_duration, read_span, read_time
from halfmq.v1 import admin_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from datetime import datetime, timedelta

    from client_core.times import Span

__all__ = [
    "AgeBucket",
    "AsyncCluster",
    "BrokerHealth",
    "BrokerStatus",
    "ClientKind",
    "ConnectedClient",
    "GroupLag",
    "Overview",
    "PendingOfGroup",
]

_PAGE = 1000


class ClientKind(IntEnum):
    """What a client does."""

    PRODUCER = pb.CLIENT_KIND_PRODUCER
    """It answers checks."""
    CONSUMER = pb.CLIENT_KIND_CONSUMER
    """It consumes."""


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """How a broker is.

    Attributes:
        ready: Whether it can use the database, and finds its tables.
        failed_rounds: Rounds of maintenance that failed since it started, and parts of rounds, by their loops.
        database_errors: Errors of database transactions since it started, by kind: ``retry`` (it was tried again),
            ``lost`` (a connection), ``read_only``, ``full``, ``other``.
        clock_difference: By how much the database's clock is ahead of its machine's; negative: behind.
    """

    ready: bool
    failed_rounds: dict[str, int]
    database_errors: dict[str, int]
    clock_difference: timedelta

    @classmethod
    def of(cls, health: pb.BrokerHealth) -> BrokerHealth:
        """Reads the wire form."""
        return cls(
            ready=health.ready,
            failed_rounds={each.name: each.count for each in health.failed_rounds},
            database_errors={each.name: each.count for each in health.database_errors},
            clock_difference=read_span(health.clock_difference),
        )


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """What a broker reports of itself.

    Attributes:
        broker_id: Its name.
        host: Name of its machine.
        pid: Number of its process.
        endpoint: Address it listens on.
        version: Its version.
        started_at: When it started (database time, UTC).
        seen_at: When it last reported (database time, UTC).
        alive: Whether it reported lately.
        producers: Producers with a stream to it.
        consumers: Consumers with a stream to it.
        health: How it is; of the broker that answers alone, None of others.
    """

    broker_id: str
    host: str
    pid: int
    endpoint: str
    version: str
    started_at: datetime | None
    seen_at: datetime | None
    alive: bool
    producers: int
    consumers: int
    health: BrokerHealth | None

    @classmethod
    def of(cls, status: pb.BrokerStatus) -> BrokerStatus:
        """Reads the wire form."""
        return cls(
            broker_id=status.broker_id,
            host=status.host,
            pid=status.pid,
            endpoint=status.endpoint,
            version=status.version,
            started_at=read_time(status.started_at),
            seen_at=read_time(status.seen_at),
            alive=status.alive,
            producers=status.producers,
            consumers=status.consumers,
            health=BrokerHealth.of(status.health) if status.HasField("health") else None,
        )


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A client with an open stream; a Producer, which only sends, has none.

    Attributes:
        kind: What it does; None: something that this version does not know.
        client_id: Its name.
        address: Where it calls from, such as ``10.1.2.3:45678``.
        library: Its library and version, as it says.
        principal: Who it is; empty without access control.
        groups: Its groups.
        topics: Topics that it consumes.
        broker_id: Broker that it is connected to.
        connected_at: Since when (database time, UTC).
        credits: Messages that it may still be sent; None where it asks for messages by calls.
        byte_credits: Bytes of bodies that it may still be sent; None: no such limit.
        delivered: Messages delivered to it on this stream, or checks sent to it.
        held: Messages that it holds under leases and has not settled; checks that it has not answered.
    """

    kind: ClientKind | None
    client_id: str
    address: str
    library: str
    principal: str
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    broker_id: str
    connected_at: datetime | None
    credits: int | None
    byte_credits: int | None
    delivered: int
    held: int

    @classmethod
    def of(cls, client: pb.ConnectedClient) -> ConnectedClient:
        """Reads the wire form."""
        return cls(
            kind=_KINDS.get(client.kind),
            client_id=client.client_id,
            address=client.address,
            library=client.library,
            principal=client.principal,
            groups=tuple(client.groups),
            topics=tuple(client.topics),
            broker_id=client.broker_id,
            connected_at=read_time(client.connected_at),
            credits=client.credits if client.HasField("credits") else None,
            byte_credits=client.byte_credits if client.HasField("byte_credits") else None,
            delivered=client.delivered,
            held=client.held,
        )


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Lag of a consumer group in a topic, over all queues; of a broadcasting group, over all members.

    Attributes:
        group: Consumer group.
        topic: Topic; empty: it never read one.
        queues: Number of queues that it reads.
        lag: Messages that the group has not handled yet.
        lag_time: How long ago the first of them became visible; None when there is none.
        in_flight: Messages delivered and not yet handled, or waiting for redelivery.
        paused_at: Since when the group is paused (database time, UTC); None unless it is.
        members: Members of a broadcasting group that read the topic; otherwise 0.
        dead_letters: Dead letters of the group that are kept, from all topics.
    """

    group: str
    topic: str
    queues: int
    lag: int
    lag_time: timedelta | None
    in_flight: int
    paused_at: datetime | None
    members: int
    dead_letters: int

    @classmethod
    def of(cls, lag: pb.GroupLag) -> GroupLag:
        """Reads the wire form."""
        return cls(
            group=lag.group,
            topic=lag.topic,
            queues=lag.queues,
            lag=lag.lag,
            lag_time=read_span(lag.lag_time) if lag.HasField("lag_time") else None,
            in_flight=lag.in_flight,
            paused_at=read_time(lag.paused_at),
            members=lag.members,
            dead_letters=lag.dead_letters,
        )


@dataclass(frozen=True, slots=True)
class PendingOfGroup:
    """Transactions without a verdict of a producer group.

    Attributes:
        producer_group: The group.
        prepared: Those that are checked.
        parked: Those that wait for an operator.
        oldest_prepared_at: When the oldest of those that are checked was prepared (database time, UTC); None: none is.
        overdue_since: Since when a check is overdue; None: none is.
    """

    producer_group: str
    prepared: int
    parked: int
    oldest_prepared_at: datetime | None
    overdue_since: datetime | None


@dataclass(frozen=True, slots=True)
class AgeBucket:
    """Transactions without a verdict whose age is in a range.

    Attributes:
        up_to: Up to this age; None: any greater one.
        prepared: How many are PREPARED.
        parked: How many are PARKED.
    """

    up_to: timedelta | None
    prepared: int
    parked: int


@dataclass(frozen=True, slots=True)
class Overview:
    """What there is in all; transactions in each state, waiting messages, topics and groups are counted up to 100,000.

    Attributes:
        time: Database time of the count (UTC); None: nothing was counted yet, see `Admin.overview`.
        database: Database and its version.
        schema_version: Version of its tables.
        pending: Producer groups with transactions without a verdict.
        ages: These transactions by their age, the youngest first; only those whose ids begin with the time.
        topics: Topics, without dead letter topics.
        consumer_groups: Consumer groups.
        scheduled: Messages that wait for their delivery time.
        released: Messages ever released to the topics that are there, dead letters included.
        stored: Messages that are kept.
        stored_bytes: Bytes of their bodies.
        dead_letters: Dead letters that are kept.
        dead_letters_by_group: The consumer groups that have most of them, up to 100, those first.
        dead_letter_groups: Number of groups that have some, those that are not listed included.
        retention_behind: For how long the oldest record of a verdict is past its retention; None: none is.
        age: How long ago the figures were counted; zero: for this call.
    """

    time: datetime | None
    database: str
    schema_version: str
    pending: tuple[PendingOfGroup, ...]
    ages: tuple[AgeBucket, ...]
    topics: int
    consumer_groups: int
    scheduled: int
    released: int
    stored: int
    stored_bytes: int
    dead_letters: int
    dead_letters_by_group: dict[str, int]
    dead_letter_groups: int
    retention_behind: timedelta | None
    age: timedelta

    @classmethod
    def of(cls, found: pb.GetOverviewResponse) -> Overview:
        """Reads the wire form."""
        return cls(
            time=read_time(found.time),
            database=found.database,
            schema_version=found.schema_version,
            pending=tuple(
                PendingOfGroup(
                    each.producer_group,
                    each.prepared,
                    each.parked,
                    read_time(each.oldest_prepared_at),
                    read_time(each.overdue_since),
                )
                for each in found.pending
            ),
            ages=tuple(
                AgeBucket(read_span(each.up_to) if each.HasField("up_to") else None, each.prepared, each.parked)
                for each in found.ages
            ),
            topics=found.topics,
            consumer_groups=found.consumer_groups,
            scheduled=found.scheduled,
            released=found.released,
            stored=found.stored,
            stored_bytes=found.stored_bytes,
            dead_letters=found.dead_letters,
            dead_letters_by_group={each.group: each.kept for each in found.dead_letters_by_group},
            dead_letter_groups=found.dead_letter_groups,
            retention_behind=read_span(found.retention_behind) if found.HasField("retention_behind") else None,
            age=read_span(found.age),
        )


class AsyncCluster(AsyncTransactions):
    """The part of AsyncAdmin that is about brokers, clients, and all groups."""

    async def overview(self, *, wait: Span | None = None) -> Overview:
        """Returns what there is in all: transactions without a verdict by group and by age, messages, the database.

        Args:
            wait: How long to wait for a new count; the last figures are returned after that, whatever their age, or
                empty ones without a time where nothing was counted yet. None: until it is counted.
        """
        request = pb.GetOverviewRequest()
        if wait is not None:
            request.wait.CopyFrom(as_duration("wait", wait))
        found = await self._link.call(lambda broker: broker.admin.GetOverview, request)
        return Overview.of(found)

    async def list_brokers(self) -> list[BrokerStatus]:
        """Returns the brokers on this database, by their names; one that stopped silently for some minutes more."""
        found = await self._link.call(lambda broker: broker.admin.ListBrokers, pb.ListBrokersRequest())
        return [BrokerStatus.of(each) for each in found.brokers]

    def list_clients(
        self, *, kind: ClientKind | None = None, group: str | None = None, broker_id: str | None = None
    ) -> AsyncGenerator[ConnectedClient, None]:
        """Iterates over clients with an open stream to any broker; each broker reports its own every few seconds.

        Args:
            kind: Only producers, or only consumers.
            group: Only those of this group, of producers or consumers.
            broker_id: Only those of this broker.
        """
        check_kind("kind", kind, ClientKind)
        request = pb.ListClientsRequest(page_size=_PAGE)
        if kind is not None:
            request.kind = pb.ClientKind.ValueType(kind)
        for name, value in (("group", group), ("broker_id", broker_id)):
            if value is not None:
                check_text(name, value, "is what clients belong to")
                setattr(request, name, value)
        return self._paged(
            request,
            lambda broker: broker.admin.ListClients,
            lambda page: [ConnectedClient.of(each) for each in page.clients],
        )

    def list_group_lag(self, topic: str | None = None) -> AsyncGenerator[GroupLag, None]:
        """Iterates over the lag of all consumer groups, by group and topic; `topic`: only in this one."""
        request = pb.ListGroupLagRequest(page_size=_PAGE)
        if topic is not None:
            check_text("topic", topic, "is the name of a topic")
            request.topic = topic
        return self._paged(
            request,
            lambda broker: broker.admin.ListGroupLag,
            lambda page: [GroupLag.of(each) for each in page.groups],
        )


_KINDS: dict[int, ClientKind] = {kind.value: kind for kind in ClientKind}
