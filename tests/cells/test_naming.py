"""What is created by being named, and what is left of a name that is refused."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import CellClient
from cells.test_lost_cell import soon
from cells.test_routing import bodies, count, reason
from faults.client import COMMITTED, PATIENCE, message, new_id, unique
from halfmq.v1 import admin_pb2, consumer_pb2, sink_pb2, transaction_pb2
from support.brokers import BrokerProcess
from support.databases import connect, create_database, drop_database, server_url
from support.sessions import processlist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cells.conftest import Cells
    from support.databases import Kind


@pytest.fixture
def databases(kind: Kind) -> Iterator[list[str]]:
    made = [create_database(server_url(kind)) for _ in range(2)]
    yield made
    for url in made:
        drop_database(url)


def test_a_topic_is_not_created_by_a_broker_that_looks_for_it_where_it_was(databases: list[str]) -> None:
    """It would be in no list: what is sent to it would be acknowledged, and read by nobody."""
    home, other = databases
    cells = {"HALFMQ_CELLS": f"b={other}"}
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(CellClient(broker.endpoint))
            for broker in [stack.enter_context(BrokerProcess(home, cells, auto_create=True)) for _ in range(2)]
        )
        far = one.topic_in("b")
        two.send(message(far, "1"))
        one.delete_topic(far)
        soon(lambda: two.send(message(far, "2")))
        assert bodies(one, far) == [b"2"]
        assert count(other, "topic", f"name = '{far}'") == 0


def test_a_deletion_comes_to_its_end_though_its_client_has_gone_and_its_broker_stops(databases: list[str]) -> None:
    """Home would refuse the name: it is in its cell no more, and in the list still."""
    home, other = databases
    with (
        BrokerProcess(home, {"HALFMQ_CELLS": f"b={other}"}, drain=60) as broker,
        CellClient(broker.endpoint) as client,
        closing(connect(other)) as own,
        own.cursor() as cursor,
    ):
        far = client.topic_in("b")
        cursor.execute("SELECT VERSION(), DATABASE() FROM topic WHERE name = %s FOR UPDATE", (far,))
        ((version, database),) = cursor.fetchall()
        call = client.admin.DeleteTopic.future(admin_pb2.DeleteTopicRequest(topic=far), timeout=PATIENCE)
        waits = f"db = '{database}' AND id <> CONNECTION_ID() AND info LIKE '%FROM topic WHERE%FOR UPDATE'"
        until = time.monotonic() + PATIENCE
        while not count(other, processlist(str(version)), waits):
            assert time.monotonic() < until
            time.sleep(0.05)
        call.cancel()
        broker.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            broker.process.wait(1)
        own.rollback()
        assert broker.stop() == 0
        assert count(other, "topic", f"name = '{far}'") == count(home, "placement", f"name = '{far}'") == 0


def refused(call: Callable[[], object]) -> str:
    """Why a call is refused."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    return reason(error.value)


@pytest.mark.parametrize("name", ["", "two words", "x" * 130, "x" * 400, "x" * 1_000_000])
def test_what_cannot_be_created_is_not_placed(client: CellClient, cells: Cells, name: str) -> None:
    far = client.topic_in("b")
    before = count(cells.home, "placement", "1 = 1")
    pull = consumer_pb2.PullRequest(consumer_group=name, topics=[far])
    assert refused(lambda: list(client._consumer.Pull(pull, timeout=PATIENCE))) == "NAME_INVALID"
    topic = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=name), cell="b")
    assert refused(lambda: client.admin.CreateTopic(topic, timeout=PATIENCE)) == "NAME_INVALID"
    epoch = sink_pb2.PrepareEpochRequest(epoch=sink_pb2.Epoch(sink=name), messages=[message(far, "1")])
    assert refused(lambda: client.sinks.PrepareEpoch(epoch, timeout=PATIENCE)) == "NAME_INVALID"
    assert count(cells.home, "placement", "1 = 1") == before


def test_a_refused_creation_leaves_no_place(client: CellClient) -> None:
    far, group, topic = client.topic_in("b"), unique("readers"), unique("orders")
    pull = consumer_pb2.PullRequest(consumer_group=group, topics=[far])
    pull.lease_duration.FromSeconds(-1)
    assert refused(lambda: list(client._consumer.Pull(pull, timeout=PATIENCE))) == "INVALID_ARGUMENT"
    client.create_group(group)
    wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic, queue_count=1_000_000), cell="b")
    assert refused(lambda: client.admin.CreateTopic(wanted, timeout=PATIENCE)) == "INVALID_ARGUMENT"
    client.create_topic(topic, 1)
    assert client.pull(group, topic) == []


def test_what_never_came_to_be_is_deleted_from_the_list(client: CellClient, cells: Cells) -> None:
    topic = unique("orders")
    with closing(connect(cells.home)) as own, own.cursor() as cursor:
        cursor.execute("INSERT INTO placement (kind, name, cell_no) VALUES (1, %s, 1)", (topic,))
        own.commit()
    assert refused(lambda: client.delete_topic(topic)) == "TOPIC_NOT_FOUND"
    client.create_topic(topic, 1)
    client.send(message(topic, "1"))
    assert count(cells.home, "topic", f"name = '{topic}'") == 1


def test_a_topic_of_dead_letters_is_placed_with_its_group_only(client: CellClient, cells: Cells) -> None:
    group = unique("readers")
    wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=f"%DLQ%{group}"), cell="b")
    assert refused(lambda: client.admin.CreateTopic(wanted, timeout=PATIENCE)) == "INVALID_ARGUMENT"
    assert count(cells.home, "placement", f"name = '{group}'") == 0


def test_errors_about_many_or_long_names_are_short(client: CellClient) -> None:
    """Those that do not fit into the metadata of a call reach nobody."""
    topics = [client.topic_in(""), client.topic_in("b"), *[f"{number:0>120}" for number in range(900)]]
    pull = consumer_pb2.PullRequest(consumer_group="readers", topics=topics)
    assert refused(lambda: list(client._consumer.Pull(pull, timeout=PATIENCE))) == "TOPICS_APART"
    topics[2:] = ["x" * 1_000_000]
    pull = consumer_pb2.PullRequest(consumer_group="readers", topics=topics)
    assert refused(lambda: list(client._consumer.Pull(pull, timeout=PATIENCE))) == "TOPICS_APART"
    wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name="orders"), cell="x" * 100_000)
    assert refused(lambda: client.admin.CreateTopic(wanted, timeout=PATIENCE)) == "INVALID_ARGUMENT"
    page = admin_pb2.ListTopicsRequest(page_token="x" * 100_000 + ":")
    assert refused(lambda: client.admin.ListTopics(page, timeout=PATIENCE)) == "INVALID_ARGUMENT"


def test_a_topic_that_is_created_while_it_is_deleted_is_where_the_list_says(
    client: CellClient, another: CellClient, cells: Cells
) -> None:
    topic = unique("orders")
    wanted = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic, queue_count=1), cell="b")
    deletion = admin_pb2.DeleteTopicRequest(topic=topic)
    here = f"name = '{topic}'"
    left, rounds, until = set(), 0, time.monotonic() + PATIENCE
    while rounds < 40 or (left != {0, 1} and time.monotonic() < until):
        rounds += 1
        with suppress(grpc.RpcError):
            client.admin.CreateTopic(wanted, timeout=PATIENCE)
        calls = [
            another.admin.DeleteTopic.future(deletion, timeout=PATIENCE),
            client.admin.CreateTopic.future(wanted, timeout=PATIENCE),
        ]
        assert {call.code() for call in calls} <= {grpc.StatusCode.OK, grpc.StatusCode.ALREADY_EXISTS}
        there = count(cells.other, "topic", here)
        assert count(cells.home, "placement", here) == there
        assert count(cells.home, "topic", here) == 0
        left.add(there)
    assert left == {0, 1}


def test_a_group_that_is_named_again_where_it_is_remembered_is_in_the_list(
    client: CellClient, another: CellClient, cells: Cells
) -> None:
    """It was deleted by another broker: otherwise it would be created at home, too."""
    far, group = client.topic_in("b"), unique("readers")
    another.pull(group, far)
    client.delete_group(group)
    another.pull(group, far)
    assert count(cells.other, "consumer_group", f"name = '{group}'") == 1
    assert refused(lambda: client.create_group(group)) == "GROUP_EXISTS"
    client.delete_group(group)
    client.create_group(group)
    assert refused(lambda: another.pull(group, far)) in {"MOVED", "TOPICS_APART"}
    assert count(cells.other, "consumer_group", f"name = '{group}'") == 0


@pytest.mark.parametrize("topics", [True, False])
def test_a_sink_that_is_named_again_where_it_is_remembered_is_in_the_list(
    client: CellClient, another: CellClient, cells: Cells, topics: bool
) -> None:
    far, name = client.topic_in("b"), unique("sink")

    def commit(each: CellClient, number: int, *, with_topics: bool) -> None:
        request = sink_pb2.CommitEpochRequest(epoch=sink_pb2.Epoch(sink=name, query_id="q", number=number))
        if with_topics:
            request.transactions.add(transaction_id=new_id(), messages=[message(far, "1")])
        each.sinks.CommitEpoch(request, timeout=PATIENCE)

    commit(another, 0, with_topics=True)
    client.sinks.DeleteSink(sink_pb2.DeleteSinkRequest(sink=name), timeout=PATIENCE)
    commit(another, 1, with_topics=topics)
    assert count(cells.other, "sink", f"name = '{name}'") == 1
    assert count(cells.home, "placement", f"name = '{name}'") == 1
    commit(client, 2, with_topics=True)
    client.sinks.DeleteSink(sink_pb2.DeleteSinkRequest(sink=name), timeout=PATIENCE)
    assert [count(url, "sink", f"name = '{name}'") for url in (cells.home, cells.other)] == [0, 0]


def test_two_transactions_of_one_call_with_one_id_are_in_one_cell(client: CellClient) -> None:
    near, far, own = client.topic_in(""), client.topic_in("b"), new_id()
    halves = [
        transaction_pb2.HalfTransaction(transaction_id=own, messages=[message(name, "1")]) for name in (near, far)
    ]
    request = transaction_pb2.PrepareRequest(producer_group="shop", transactions=halves)
    results = client.transactions.Prepare(request, timeout=PATIENCE).results
    assert [result.error.reason for result in results] == ["", "TOPICS_APART"]
    assert client.commit(own).state == COMMITTED
    assert bodies(client, near) == [b"1"]
    assert bodies(client, far) == []


def test_what_a_restored_list_does_not_have_is_placed_by_creating_it_again(client: CellClient, cells: Cells) -> None:
    """The home database was put back to before the topic was created in its cell, and the cell was not."""
    topic = client.topic_in("b")
    client.send(message(topic, "kept"))
    with closing(connect(cells.home)) as own, own.cursor() as cursor:
        for table in ("placement", "moved_name"):
            cursor.execute(f"DELETE FROM {table} WHERE name = '{topic}'")
        own.commit()
    until = time.monotonic() + 10
    while topic_is_found(client, topic):
        assert time.monotonic() < until
        time.sleep(0.2)
    again = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic, queue_count=1), cell="b")
    with pytest.raises(grpc.RpcError) as refused:
        client.admin.CreateTopic(again, timeout=PATIENCE)
    assert reason(refused.value) == "TOPIC_EXISTS"
    assert bodies(client, topic) == [b"kept"]


def topic_is_found(client: CellClient, topic: str) -> bool:
    try:
        client.offsets(topic)
    except grpc.RpcError as error:
        assert error.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}
        return False
    return True
