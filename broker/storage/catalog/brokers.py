"""What brokers report of themselves and of their clients: a row for each broker."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.ports.connections import MOST_NAMES, BrokerStatus, ClientKind, ConnectedClient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.storage.engine.session import Session

_COLUMNS = "broker_id, host, pid, endpoint, version, started_at, seen_at, producers, consumers"
_LENGTHS = 255
_LARGEST = 16 << 20
"""Bytes of a report before it is packed; clients beyond it are left out. More was not written by a broker."""


class Reported(NamedTuple):
    """The latest report under a broker's name.

    Attributes:
        at: when (microseconds).
        host, pid: of the process.
        own: whether it is of the process that asks; each broker has a name of its own, or should have.
    """

    at: int
    host: str
    pid: int
    own: bool


def report(
    session: Session,
    status: BrokerStatus,
    clients: Sequence[ConnectedClient] | None,
    now: int,
    over: Reported | None = None,
) -> bool:
    """Replaces what a broker reported before; None: its clients are unchanged. Looks at no other broker's row.

    What another process with its name reported is replaced as well, unless that is later, as after a standstill;
    `over`: even then, if it is still this report.

    Returns:
        Whether that was done. It was not if clients are needed: there is no report of this process, because it was
        silent for long, or another process has its name. Nor if that one's report stays.
    """
    values = _values(status, now)
    assignments = ", ".join(f"{column} = ?" for column in _COLUMNS.split(", ")[1:])
    own, of_process = _own(status)
    if clients is None:
        return session.run(f"UPDATE broker SET {assignments} WHERE {own}", (*values[1:], *of_process)) > 0
    packed = _pack(clients)
    changed = session.run(
        f"UPDATE broker SET {assignments}, clients = ? WHERE broker_id = ? AND (seen_at <= ? OR seen_at = ? OR {own})",
        (*values[1:], packed, values[0], now, now if over is None else over.at, *of_process),
    )
    if changed:
        return True
    return session.insert("broker", f"{_COLUMNS}, clients", [(*values, packed)], keep_existing="broker_id") > 0


def remove_silent(session: Session, before: int) -> int:
    """Removes brokers that have not reported since then; returns how many.

    First they are looked for, without locks: a deletion that looks at all rows would wait for all brokers'.
    """
    found = session.fetch("SELECT broker_id FROM broker WHERE seen_at < ?", (before,))
    return sum(
        session.run("DELETE FROM broker WHERE broker_id = ? AND seen_at < ?", (broker_id, before))
        for (broker_id,) in found
    )


def _own(status: BrokerStatus) -> tuple[str, tuple[Any, ...]]:
    """A condition for the row that this process reported last; another one may have the same name."""
    broker_id, host, pid, _, _, started_at, *_ = _values(status, 0)
    return "broker_id = ? AND host = ? AND pid = ? AND started_at = ?", (broker_id, host, pid, started_at)


def reported(session: Session, status: BrokerStatus) -> Reported | None:
    """The latest report under a broker's name; None: there is none."""
    name, host, pid, _, _, started_at, *_ = _values(status, 0)
    row = session.fetch_one("SELECT seen_at, host, pid, started_at FROM broker WHERE broker_id = ?", (name,))
    if row is None:
        return None
    at, *process = row
    return Reported(int(at), str(process[0]), int(process[1]), own=process == [host, pid, started_at])


def forget(session: Session, status: BrokerStatus) -> None:
    """Removes a broker, unless another process reports under its name by now."""
    own, of_process = _own(status)
    session.run(f"DELETE FROM broker WHERE {own}", of_process)


def all_brokers(session: Session) -> list[BrokerStatus]:
    """All brokers that reported lately, by their names."""
    return [BrokerStatus(*row) for row in session.fetch(f"SELECT {_COLUMNS} FROM broker ORDER BY broker_id")]


def clients_of(session: Session, broker_id: str) -> list[ConnectedClient]:
    """The clients that a broker reported."""
    row = session.fetch_one("SELECT clients FROM broker WHERE broker_id = ?", (broker_id,))
    return [] if row is None else _unpack(row[0])


def groups_with_producers(session: Session, since: int) -> set[str] | None:
    """The groups of all producers with a check stream to a broker that has reported since then.

    Returns:
        None where a broker has more producers than it reports, or one of them is in more groups.
    """
    found: set[str] = set()
    for count, packed in session.fetch(
        "SELECT producers, clients FROM broker WHERE seen_at >= ? AND producers > 0", (since,)
    ):
        producers = [each for each in _unpack(packed) if each.kind is ClientKind.PRODUCER]
        if len(producers) < count or any(len(each.groups) >= MOST_NAMES for each in producers):
            return None
        found.update(*[each.groups for each in producers])
    return found


def _values(status: BrokerStatus, now: int) -> tuple[Any, ...]:
    texts = [text[:_LENGTHS] for text in (status.broker_id, status.host, status.endpoint, status.version)]
    broker_id, host, endpoint, version = texts
    return (broker_id, host, status.pid, endpoint, version, status.started_at, now, status.producers, status.consumers)


def _pack(clients: Sequence[ConnectedClient]) -> bytes:
    entries: list[str] = []
    size = len("[]")
    for each in clients:
        entry = [
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
        text = json.dumps(entry, separators=(",", ":"))
        size += len(text) + len(",")
        if size > _LARGEST:
            break
        entries.append(text)
    return zlib.compress(f"[{','.join(entries)}]".encode(), 1)


def _unpack(packed: bytes) -> list[ConnectedClient]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, _LARGEST)
    return [_client(*entry) for entry in json.loads(text)]


def _client(kind: int, *rest: Any) -> ConnectedClient:
    client_id, address, library, principal, groups, topics, *figures = rest
    return ConnectedClient(
        ClientKind(kind), client_id, address, library, principal, tuple(groups), tuple(topics), *figures
    )
