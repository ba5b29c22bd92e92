"""Brokers, connected clients, and what there is in all, on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from broker.wire.times import fill_duration, fill_signed, timestamp
from halfmq.v1 import admin_pb2

if TYPE_CHECKING:
    from broker.ports.connections import BrokerHealth, BrokerStatus, ConnectedClient
    from broker.ports.sampling import Overview


def overview(found: Overview) -> admin_pb2.GetOverviewResponse:
    """What there is in all."""
    response = admin_pb2.GetOverviewResponse(
        time=timestamp(found.time),
        database=found.database,
        schema_version=found.schema_version,
        topics=found.topics,
        consumer_groups=found.consumer_groups,
        scheduled=found.scheduled,
        released=found.released,
        stored=found.stored,
        stored_bytes=found.stored_bytes,
        dead_letters=found.dead_letters,
        dead_letter_groups=found.dead_letter_groups,
    )
    for each in found.pending:
        response.pending.add(
            producer_group=each.producer_group,
            prepared=each.pending,
            parked=each.parked,
            oldest_prepared_at=None if each.since is None else timestamp(each.since),
            overdue_since=None if each.due_since is None else timestamp(each.due_since),
        )
    for bucket in found.ages:
        added = response.ages.add(prepared=bucket.prepared, parked=bucket.parked)
        if bucket.up_to is not None:
            fill_duration(added.up_to, bucket.up_to)
    for letters in found.dead_letters_by_group:
        response.dead_letters_by_group.add(group=letters.consumer_group, kept=letters.kept)
    if found.retention_behind:
        fill_duration(response.retention_behind, found.retention_behind)
    if found.age:
        fill_duration(response.age, found.age)
    return response


def broker(status: BrokerStatus, alive: bool, health: BrokerHealth | None) -> admin_pb2.BrokerStatus:
    """A broker; `health` None: it is not known."""
    result = admin_pb2.BrokerStatus(
        broker_id=status.broker_id,
        host=status.host,
        pid=status.pid,
        endpoint=status.endpoint,
        version=status.version,
        started_at=timestamp(status.started_at),
        seen_at=timestamp(status.seen_at),
        alive=alive,
        producers=status.producers,
        consumers=status.consumers,
    )
    if health is not None:
        result.health.ready = health.ready
        for counts, target in (
            (health.failed_rounds, result.health.failed_rounds),
            (health.database_errors, result.health.database_errors),
        ):
            for name, count in counts.items():
                target.add(name=name, count=count)
        fill_signed(result.health.clock_difference, health.clock_difference)
    return result


def connected_client(broker_id: str, client: ConnectedClient) -> admin_pb2.ConnectedClient:
    """A client of a broker."""
    return admin_pb2.ConnectedClient(
        kind=cast("admin_pb2.ClientKind.ValueType", int(client.kind)),
        client_id=client.client_id,
        address=client.address,
        library=client.library,
        principal=client.principal,
        groups=client.groups,
        topics=client.topics,
        broker_id=broker_id,
        connected_at=timestamp(client.connected_at),
        credits=client.credits,
        byte_credits=client.byte_credits,
        delivered=client.delivered,
        held=client.held,
    )
