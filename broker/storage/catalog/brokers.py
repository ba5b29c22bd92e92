"""What brokers report of themselves and of their clients: a row for each broker."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from broker.ports.connections import BrokerStatus, ClientKind, ConnectedClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

SILENT = 600_000_000
"""Microseconds after which a broker that does not report is removed."""
_COLUMNS = "broker_id, host, pid, endpoint, version, started_at, seen_at, producers, consumers"
_LENGTHS = 255
_LARGEST = 64 << 20
"""Bytes of a report once it is unpacked; more was not written by a broker."""


def report(session: Session, status: BrokerStatus, clients: Sequence[ConnectedClient] | None, now: int) -> None:
    """Replaces what a broker reported before; None: its clients are unchanged. Removes brokers silent for long."""
    values = _values(status, now)
    assignments = ", ".join(f"{column} = ?" for column in _COLUMNS.split(", ")[1:])
    packed = () if clients is None else (_pack(clients),)
    changed = session.run(
        f"UPDATE broker SET {assignments}{', clients = ?' if packed else ''} WHERE broker_id = ?",
        (*values[1:], *packed, values[0]),
    )
    if not changed:
        session.insert(
            "broker", f"{_COLUMNS}, clients", [(*values, *(packed or (_pack([]),)))], keep_existing="broker_id"
        )
    session.run("DELETE FROM broker WHERE seen_at < ?", (now - SILENT,))


def forget(session: Session, broker_id: str) -> None:
    """Removes a broker."""
    session.run("DELETE FROM broker WHERE broker_id = ?", (broker_id,))


def all_brokers(session: Session) -> list[BrokerStatus]:
    """All brokers that reported lately, by their names."""
    return [BrokerStatus(*row) for row in session.fetch(f"SELECT {_COLUMNS} FROM broker ORDER BY broker_id")]


def clients_of(session: Session, broker_id: str) -> list[ConnectedClient]:
    """The clients that a broker reported."""
    row = session.fetch_one("SELECT clients FROM broker WHERE broker_id = ?", (broker_id,))
    return [] if row is None else _unpack(row[0])


def _values(status: BrokerStatus, now: int) -> tuple[Any, ...]:
    texts = [text[:_LENGTHS] for text in (status.broker_id, status.host, status.endpoint, status.version)]
    broker_id, host, endpoint, version = texts
    return (broker_id, host, status.pid, endpoint, version, status.started_at, now, status.producers, status.consumers)


def _pack(clients: Sequence[ConnectedClient]) -> bytes:
    entries = [
        [
            int(each.kind),
            each.client_id,
            each.address,
            each.library,
            each.principal,
            each.groups,
            each.topics,
            each.connected_at,
            each.credits,
            each.byte_credits,
            each.delivered,
            each.held,
        ]
        for each in clients
    ]
    return zlib.compress(json.dumps(entries, separators=(",", ":")).encode(), 1)


def _unpack(packed: bytes) -> list[ConnectedClient]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, _LARGEST)
    return [_client(*entry) for entry in json.loads(text)]


def _client(kind: int, *rest: Any) -> ConnectedClient:
    client_id, address, library, principal, groups, topics, *figures = rest
    return ConnectedClient(
        ClientKind(kind), client_id, address, library, principal, tuple(groups), tuple(topics), *figures
    )
