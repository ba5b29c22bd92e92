"""Backups that are taken under load, and restored: to the moment before a mistake, or to that of the backup.

What was acknowledged before that moment is there; what consumers acknowledged after it they get again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from faults.client import COMMITTED, PREPARED, Client, code_of, message, new_id, trailer, unique
from faults.history import Outcome, judge
from faults.load import CHECKS, LEASE, Load
from halfmq.v1 import admin_pb2
from support.backups import WITH_BINARY_LOG, dump, now, restore
from support.brokers import BrokerProcess
from support.command import run
from support.databases import create_database
from support.private_servers import PrivateServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from faults.history import Entry, Findings, History
    from support.databases import Kind

COMMITS = 40
SOME = 10


def taken(client: Client, group: str, topic: str, count: int) -> list[bytes]:
    """Takes so many messages, and acknowledges them."""
    found: list[bytes] = []
    while len(found) < count:
        pulled = client.pull(group, topic, count - len(found), wait=5)
        results = client.ack([each.receipt_handle for each in pulled])
        assert not any(result.HasField("error") for result in results)
        found += [each.message.body for each in pulled]
    return found


def test_restored_to_the_moment_before_a_mistake(kind: Kind, tmp_path: Path) -> None:
    with (
        PrivateServer(kind, tmp_path / "first", WITH_BINARY_LOG) as server,
        PrivateServer(kind, tmp_path / "second", WITH_BINARY_LOG) as other,
    ):
        database = create_database(server.url)
        with BrokerProcess(database, **CHECKS) as broker, Client(broker.endpoint) as client:
            with Load([broker.endpoint], checked=True) as load:
                load.history.await_commits(COMMITS)
                dump(server, database, tmp_path / "copy.sql")
                load.history.await_commits(COMMITS)
            before = load.finish(client)
            assert judge(load.history, before) == []
            topic, readers, producers, transaction = load.topic, client.make_group(), unique("producers"), new_id()
            acknowledged_before = taken(client, readers, topic, SOME)
            client.prepare(producers, transaction, [message(topic, "decided afterwards")], check_after=3600)

            ends = {queue.queue: queue.max_offset for queue in client.offsets(topic)}
            moment = now(server)
            acknowledged_after = taken(client, readers, topic, SOME)
            held = client.pull(readers, topic, 1, wait=5)
            client.commit(transaction)
            sent_after = message(topic, "sent afterwards", message_id=new_id())
            client.send(sent_after)
            assert not any(result.HasField("error") for result in client.ack([each.receipt_handle for each in held]))
            undone = {queue.queue: queue.max_offset for queue in client.offsets(topic)}
            make_a_mistake(client, load)
        restore(tmp_path / "copy.sql", server, moment, other, tmp_path)

        restored = database.replace(server.url.rpartition("/")[0], other.url.rpartition("/")[0])
        tell_of_restore(restored)
        with BrokerProcess(restored, **CHECKS) as broker, Client(broker.endpoint) as client:
            # Everything that was acknowledged before is there, and nothing else.
            found = load.findings(client)
            assert replace(found, heads=before.heads) == before
            # What was given after it is refused: receipts, and offsets.
            assert [each.error.reason for each in client.ack([each.receipt_handle for each in held])] == [
                "RECEIPT_GONE"
            ]
            goes_on = offsets_are_refused(client, topic, ends, undone)
            # Consumers: what was acknowledged after it comes again, and what was before does not.
            again = [each.message.body for each in client.drain(readers, topic)]
            assert sorted(acknowledged_before + again) == sorted(entry.body for _, entry in entries_of(before))
            assert set(acknowledged_after) <= set(again)
            assert client.pull(load.group, topic, wait=LEASE) == []
            # Producers: what was decided after it is pending again, and checks will ask; a repeated call is taken.
            assert client.transaction(transaction).state == PREPARED
            client.commit(transaction)
            assert client.transaction(transaction).state == COMMITTED
            client.send(sent_after)
            bodies = {each.body for entries in client.log(topic).values() for each in entries}
            assert {b"decided afterwards", b"sent afterwards"} <= bodies
            # Whoever kept an offset of the moment gets what came since, and nothing twice.
            since = [
                each.body
                for number, offset in ends.items()
                for each in client.read(topic, number, offset)
                if each.offset >= goes_on[number]
            ]
            assert sorted(since) == [b"decided afterwards", b"sent afterwards"]
            assert broker.count("[error") == 0, broker.log


def tell_of_restore(database: str) -> str:
    """Runs `halfmq restored`; what it says."""
    done = run("restored", variables={"HALFMQ_DATABASE": database})
    assert done.returncode == 0, done.stderr
    return done.stdout


def offsets_are_refused(client: Client, topic: str, ends: dict[int, int], undone: dict[int, int]) -> dict[int, int]:
    """Offsets between the ends of the moment and those that were undone are refused; where each queue goes on."""
    goes_on = {queue.queue: queue.max_offset for queue in client.offsets(topic)}
    readers = client.make_group()
    some = False
    for number, end in ends.items():
        assert client.read(topic, number, end) == []
        for lost in range(end + 1, undone[number] + 1):
            some = True
            for use in (client.read, lambda *place: client.commit_offset(readers, *place)):
                with pytest.raises(grpc.RpcError) as refused:
                    use(topic, number, lost)
                assert (code_of(refused.value), trailer(refused.value, "halfmq-reason")) == (
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "OFFSET_LOST",
                )
                assert f"Go on at {goes_on[number]}" in (refused.value.details() or "")
    assert some
    return goes_on


def entries_of(found: Findings) -> list[tuple[int, Entry]]:
    return [entry for entries in found.log.values() for entry in entries]


def make_a_mistake(client: Client, load: Load) -> None:
    """An operator rolls back what is pending, and deletes the topic."""
    assert load.answerer is not None
    for group in (load.producers, load.answerer.group):
        for transaction in client.undecided(group):
            client.resolve(transaction, admin_pb2.RESOLUTION_ROLLBACK)
    client.delete_topic(load.topic)
    with pytest.raises(grpc.RpcError) as gone:
        client.log(load.topic)
    assert code_of(gone.value) is grpc.StatusCode.NOT_FOUND


def by_backup_of_the_library(source: sqlite3.Connection, copy: Path) -> None:
    """What `.backup` of sqlite3's shell does."""
    with closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def by_vacuum(source: sqlite3.Connection, copy: Path) -> None:
    source.execute("VACUUM INTO ?", (str(copy),))


@pytest.mark.parametrize("back_up", [by_backup_of_the_library, by_vacuum])
def test_an_embedded_database_is_copied_under_load(
    back_up: Callable[[sqlite3.Connection, Path], None], tmp_path: Path
) -> None:
    original, copy = tmp_path / "halfmq.db", tmp_path / "copy.db"
    with BrokerProcess(f"sqlite:///{original}", **CHECKS) as broker, Client(broker.endpoint) as client:
        with Load([broker.endpoint], checked=True) as load:
            load.history.await_commits(COMMITS)
            moment = load.history.moment()
            with closing(sqlite3.connect(original, timeout=60)) as source:
                back_up(source, copy)
            load.history.await_commits(COMMITS)
        assert judge(load.history, load.finish(client)) == []
    with BrokerProcess(f"sqlite:///{copy}", **CHECKS) as broker, Client(broker.endpoint) as client:
        found = load.findings(client)
        released = {entry.transaction_id for _, entry in entries_of(found)}
        assert acknowledged(load.history, moment) <= released
        for offsets in ([offset for offset, _ in entries] for entries in found.log.values()):
            assert offsets == sorted(set(offsets))
        client.send(message(load.topic, "goes on"))
        assert broker.count("[error") == 0, broker.log


def acknowledged(history: History, before: int) -> set[str]:
    """The transactions whose commit, and the messages whose sending, was acknowledged before a moment."""
    return {
        each.transaction_id
        for each in history.operations
        if each.call in {"commit", "send"} and each.outcome is Outcome.OK and each.ended and each.ended < before
    }
