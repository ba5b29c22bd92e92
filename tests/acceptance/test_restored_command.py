"""`halfmq restored`: what clients kept of a time that a restore undid is refused, by every way to say it."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import Client, Refusal
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from broker.storage.engine.connection import Database
from client_core.errors import RequestRefused
from consumer_sdk.reading import AsyncQueueReader, OffsetGap
from halfmq.v1 import admin_pb2, consumer_pb2
from halfmq_cli.serving import REFUSED
from producer_sdk import Admin
from support.brokers import STOP_SECONDS, BrokerProcess
from support.command import run
from support.rewinding import Moment
from support.rocketmq_protocol import RawClient, resource
from support.serving import run_serve

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.databases import AnyKind, Kind
    from support.shared_brokers import Brokers


def restored(url: str) -> int:
    """Runs the command, which must work; where offsets go on."""
    done = run("restored", variables={"HALFMQ_DATABASE": url})
    assert done.returncode == 0, done.stderr
    assert "halfmq:halfmq@" not in done.stdout  # no password on a screen
    return int(done.stdout.split(" go on at ")[1].split()[0])


async def test_what_was_kept_is_refused(
    kind: AnyKind,
    brokers: Brokers,
    new_broker: Callable[..., BrokerProcess],
    connect: Callable[[BrokerProcess], Client],
) -> None:
    url = brokers.database(kind)
    broker = new_broker(url, rocketmq=True)
    client = connect(broker)
    topic, group = await client.make_topic(), await client.make_group()
    for number in range(3):
        await client.send(topic, f"kept {number}")
    assert await client.consume_all(group, topic) == ["kept 0", "kept 1", "kept 2"]
    broker.stop()
    with closing(Database(url)) as database:
        moment = Moment(database)
    broker = new_broker(url)
    client = connect(broker)
    for number in range(3):
        await client.send(topic, f"undone {number}")
    (held,) = await client.pull(group, topic, 1)
    broker.stop()
    moment.restore()
    first = restored(url)

    broker = new_broker(url, rocketmq=True)
    client = connect(broker)
    await client.send(topic, "new")
    # Whoever kept where the topic ended at the moment missed nothing.
    async with AsyncQueueReader(broker.endpoint) as reader:
        (queue,) = await reader.queue_offsets(topic, group)
        assert (queue.max_offset, queue.gaps.gaps, queue.lag) == (first + 1, (OffsetGap(3, first),), 1)
        piece = await reader.read_queue(topic, 0, 3)
        assert ([each.body for each in piece.messages], piece.next_offset) == ([b"new"], first + 1)
        with pytest.raises(RequestRefused, match=f"Go on at {first}") as refused:
            await reader.read_queue(topic, 0, 5)
        assert refused.value.reason == "OFFSET_LOST"
        with pytest.raises(RequestRefused, match=f"Go on at {first}"):
            await reader.commit_offsets(topic, group, {0: 5})
    place = {"topic": topic, "queue": 0, "to": {"offset": 5}}
    with pytest.raises(Refusal) as seek:
        await client.call(client.admin.SeekGroup, admin_pb2.SeekGroupRequest(group=group, **place))
    assert (seek.value.code, seek.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "OFFSET_LOST")
    # RocketMQ's clients are told where to go on, as by a pull.
    raw = RawClient(broker.endpoint)
    where = definition_pb2.MessageQueue(topic=resource(topic, ""), id=0)
    pulled = await raw.collect("PullMessage", service_pb2.PullMessageRequest(message_queue=where, offset=5))
    assert (pulled.code, pulled.next_offset) == (Code.ILLEGAL_OFFSET, first)
    update = service_pb2.UpdateOffsetRequest(group=resource(group, ""), message_queue=where, offset=5)
    assert (await raw.call("UpdateOffset", update)).status.code == Code.ILLEGAL_OFFSET
    await raw.close()
    # The receipt, whose message is gone.
    ack = await client.call(client.consumer.Ack, consumer_pb2.AckRequest(receipt_handles=[held.receipt_handle]))
    assert [each.error.reason for each in ack.results] == ["RECEIPT_GONE"]
    assert await client.consume_all(group, topic) == ["new"]
    with Admin(broker.endpoint) as admin:
        (described,) = admin.topic_queues(topic)
    assert (described.messages, described.max_offset) == (4, first + 1)


async def test_a_broker_that_runs_while_the_database_is_replaced_ends(
    server_kind: Kind,
    brokers: Brokers,
    connect: Callable[[BrokerProcess], Client],
    new_broker: Callable[..., BrokerProcess],
) -> None:
    """It has leases, ends of queues and topics of another state in memory; and a supervisor starts it again."""
    url = brokers.database(server_kind)
    with BrokerProcess(url) as broker, closing(Database(url)) as database:
        client = connect(broker)
        topic = await client.make_topic()
        await client.send(topic, "kept")
        moment = Moment(database)
        await client.send(topic, "undone")
        moment.restore()
        broker.await_log("in an earlier state")
        assert broker.process.wait(STOP_SECONDS) == REFUSED
    run_serve(HALFMQ_DATABASE=url).names("database", "halfmq restored")
    doctor = run("doctor", "--json", "--only=restores", variables={"HALFMQ_DATABASE": url})
    (finding,) = json.loads(doctor.stdout)["findings"]
    assert (doctor.returncode, finding["check"]) == (2, "restores")
    assert "run `halfmq restored`" in finding["remedy"]
    restored(url)
    broker = new_broker(url)
    client = connect(broker)
    await client.send(topic, "new")
    assert await client.bodies(topic) == ["kept", "new"]
    # While a broker runs, the command does nothing.
    done = run("restored", variables={"HALFMQ_DATABASE": url})
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert "stop all of them" in done.stderr


@pytest.mark.parametrize(
    ("version", "remedy"),
    [("0013", "run `halfmq migrate`"), ("9013", "use the version of halfmq that the brokers have")],
)
def test_tables_of_another_version_are_refused(brokers: Brokers, version: str, remedy: str) -> None:
    url = brokers.database("sqlite")
    assert run("migrate", variables={"HALFMQ_DATABASE": url}).returncode == 0
    with closing(Database(url)) as database:
        change(database, f"UPDATE {database.names.versions} SET version_num = '{version}'")
    done = run("restored", variables={"HALFMQ_DATABASE": url})
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert f"at version {version}" in done.stderr
    assert remedy in done.stderr


def test_another_database_is_not_taken_for_the_restored_one(kind: AnyKind, brokers: Brokers, tmp_path: Path) -> None:
    """Nor is one made, which would then be told in place of the real one."""
    variables = {"HALFMQ_DATABASE": brokers.database(kind), "HALFMQ_TABLE_PREFIX": "typo_"}
    done = run("restored", variables=variables)
    assert (done.returncode, done.stdout) == (REFUSED, "")
    assert "has no tables of halfmq with the prefix 'typo_'" in done.stderr
    assert "migrate" not in done.stderr
    file = tmp_path / "typo.db"
    done = run("restored", variables={"HALFMQ_DATABASE": f"sqlite:///{file}"})
    assert (done.returncode, "There is no file" in done.stderr) == (REFUSED, True)
    assert not file.exists()


async def test_a_broker_that_still_runs_has_ended_though_its_report_in_the_copy_is_old(
    server_kind: Kind, brokers: Brokers, connect: Callable[[BrokerProcess], Client]
) -> None:
    """As in a copy of last night."""
    url = brokers.database(server_kind)
    with BrokerProcess(url) as broker, closing(Database(url)) as database:
        await connect(broker).make_topic()
        await_report(database)
        change(database, "UPDATE broker SET seen_at = seen_at - 3600000000")
        restored(url)
        assert "in an earlier state" in broker.log
        assert broker.process.wait(STOP_SECONDS) == REFUSED


async def test_offsets_of_a_failover_that_lost_little_are_not_given_again(
    server_kind: Kind, brokers: Brokers, connect: Callable[[BrokerProcess], Client]
) -> None:
    """Its last report survived, and the queue would soon be as long as before."""
    url = brokers.database(server_kind)
    with BrokerProcess(url) as broker, closing(Database(url)) as database:
        client = connect(broker)
        topic = await client.make_topic()
        await client.send(topic, "kept")
        await_report(database)
        moment = Moment(database)
        for number in range(3):
            await client.send(topic, f"lost {number}")
        moment.restore()
        with pytest.raises(Refusal, match="in an earlier state"):
            for number in range(5):
                await client.send(topic, f"new {number}")
        broker.await_log("in an earlier state")
        assert broker.process.wait(STOP_SECONDS) == REFUSED
    run_serve(HALFMQ_DATABASE=url).names("database", "halfmq restored")


def change(database: Database, sql: str) -> None:
    """Changes rows."""
    session = database.session()
    session.begin()
    session.run(sql)
    session.commit()
    database.release(session)


def await_report(database: Database) -> None:
    """Waits until the broker has reported again."""
    before = reported_at(database)
    while reported_at(database) == before:
        time.sleep(0.05)


def reported_at(database: Database) -> int:
    session = database.session()
    try:
        session.begin(write=False)
        return int(session.fetch("SELECT seen_at FROM broker")[0][0])
    finally:
        session.rollback()
        database.release(session)


@pytest.mark.parametrize("told", [True, False], ids=["told", "forgotten"])
async def test_a_broker_that_was_frozen_while_its_file_was_replaced_ends(
    told: bool, tmp_path: Path, connect: Callable[[BrokerProcess], Client]
) -> None:
    """What it stores goes to a file that has no name any more."""
    file, copy = tmp_path / "halfmq.db", tmp_path / "copy.db"
    url = f"sqlite:///{file}"
    with BrokerProcess(url) as broker:
        client = connect(broker)
        topic = await client.make_topic()
        await client.send(topic, "kept")
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        await client.send(topic, "undone")
        broker.process.send_signal(signal.SIGSTOP)
        copy.replace(file)
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink()
        if told:
            restored(url)
        broker.process.send_signal(signal.SIGCONT)
        broker.await_log("in an earlier state")
        assert broker.process.wait(STOP_SECONDS) == REFUSED
    if not told:
        run_serve(HALFMQ_DATABASE=url).names("database", "halfmq restored")
        restored(url)
    with BrokerProcess(url) as broker:
        assert await connect(broker).bodies(topic) == ["kept"]
