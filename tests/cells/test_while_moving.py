"""Calls for what is moving: while it is sealed they are told to come back, and after the move they are served."""

from __future__ import annotations

import queue
import time
from contextlib import closing
from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import count, reason
from faults.client import PATIENCE, message, new_id, unique
from halfmq.v1 import consumer_pb2, transaction_pb2
from support.command import killed_when_it_tells, run
from support.databases import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from cells.client import CellClient
    from cells.conftest import Cells

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LONGEST = 30.0
"""Seconds in which what is moved is served again."""


def variables(cells: Cells) -> dict[str, str]:
    return {"HALFMQ_DATABASE": cells.home, "HALFMQ_CELLS": f"b={cells.other}"}


def seal(cells: Cells, to: str, *names: str) -> None:
    """A move that is left when what moves is sealed."""
    killed_when_it_tells("sealed", "cells", "move", "--to", to, *names, variables=variables(cells))


def resume(cells: Cells) -> None:
    done = run("cells", "move", "--resume", variables=variables(cells))
    assert done.returncode == 0, done.stderr


def served(call: Callable[[], object]) -> None:
    """Repeats a call that is told that something has moved, as clients do."""
    until = time.monotonic() + LONGEST
    while True:
        try:
            call()
        except grpc.RpcError as error:
            assert reason(error) == "MOVED", error
            assert time.monotonic() < until, error
            time.sleep(0.2)
        else:
            return


@pytest.mark.parametrize(("begin", "to"), [("", "b"), ("b", "home")])
def test_a_new_group_is_created_where_its_topics_have_moved(
    client: CellClient, cells: Cells, begin: str, to: str
) -> None:
    topic, group = client.topic_in(begin), unique("readers")
    # The broker remembers the topic.
    client.send(message(topic, "one"))
    seal(cells, to, "--topic", topic)
    request = consumer_pb2.PullRequest(consumer_group=group, topics=[topic])
    with pytest.raises(grpc.RpcError) as refused:
        list(client.start_pull(request))
    assert reason(refused.value) == "MOVED"
    resume(cells)
    served(lambda: list(client.start_pull(request)))
    there = [count(url, "consumer_group", f"name = '{group}'") for url in (cells.home, cells.other)]
    assert there == ([0, 1] if to == "b" else [1, 0])


@pytest.mark.parametrize(("begin", "to"), [("", "b"), ("b", "home")])
def test_a_group_that_reads_by_offset_is_created_by_its_first_progress(
    client: CellClient, cells: Cells, begin: str, to: str
) -> None:
    """And not by asking for it: it would stay where its topic was."""
    topic, group = client.topic_in(begin), unique("readers")
    client.send(message(topic, "one"))
    ask = consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
    tell = consumer_pb2.CommitOffsetsRequest(topic=topic, consumer_group=group)
    tell.queues.add(queue=0, offset=1)

    def lag() -> int:
        return client._consumer.QueueOffsets(ask, timeout=PATIENCE).queues[0].lag

    def there() -> list[int]:
        return [count(url, "consumer_group", f"name = '{group}'") for url in (cells.home, cells.other)]

    assert (lag(), there()) == (1, [0, 0])
    assert count(cells.home, "placement", f"name = '{group}'") == 0
    seal(cells, to, "--topic", topic)
    for call in (lag, lambda: client._consumer.CommitOffsets(tell, timeout=PATIENCE)):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert reason(refused.value) == "MOVED"
    resume(cells)
    served(lag)
    client._consumer.CommitOffsets(tell, timeout=PATIENCE)
    assert (lag(), there()) == (0, [0, 1] if to == "b" else [1, 0])


def settled_at_home(client: CellClient) -> str:
    """A receipt that was acknowledged."""
    topic, group = client.topic_in(""), client.group_in("")
    client.send(message(topic, "one"))
    (pulled,) = client.pull(group, topic)
    assert not client.ack([pulled.receipt_handle])[0].HasField("error")
    return pulled.receipt_handle


def await_gone(client: CellClient, handle: str) -> None:
    """Waits until the cells are sure again that a lease is gone: for a moment after a move it might be on its way."""
    until = time.monotonic() + LONGEST
    while (said := client.ack([handle])[0].error.reason) != "RECEIPT_GONE":
        assert said == "MOVED"
        assert time.monotonic() < until
        time.sleep(0.5)


def test_what_is_nowhere_is_told_so_while_a_move_only_copies(client: CellClient, cells: Cells) -> None:
    with closing(connect(cells.home, autocommit=True)) as own, own.cursor() as cursor:
        # As `halfmq cells move` notes it first.
        cursor.execute(
            "INSERT INTO cell_move (from_cell, to_cell, state, names, started_at, told_by)"
            " VALUES (0, 1, 1, '[]', 1, 'os:tester')"
        )
        try:
            told_as_missing(client)
        finally:
            cursor.execute("DELETE FROM cell_move WHERE ended_at IS NULL")


def told_as_missing(client: CellClient) -> None:
    """A transaction and a message that no cell has."""
    request = transaction_pb2.CommitRequest(transaction_ids=[new_id()])
    until = time.monotonic() + LONGEST
    # Other moves may have ended just before.
    while (error := client.transactions.Commit(request, timeout=PATIENCE).results[0].error).reason == "MOVED":
        assert time.monotonic() < until, error
        time.sleep(0.5)
    assert error.code == grpc.StatusCode.NOT_FOUND.value[0]
    with pytest.raises(grpc.RpcError) as missing:
        client.message(new_id())
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND


class TestReceipts:
    """Of a group that is moving: nobody is told that its leases are gone, which would mean that the work is done."""

    @pytest.mark.parametrize("how", ["ack", "nack", "extend"])
    def test_one_is_settled_after_the_move(self, client: CellClient, cells: Cells, how: str) -> None:
        topic, group = client.topic_in(""), client.group_in("")
        client.send(message(topic, "one"))
        (pulled,) = client.pull(group, topic)
        calls = {
            "ack": lambda: client.ack([pulled.receipt_handle]),
            "nack": lambda: client.nack([pulled.receipt_handle], "not now"),
            "extend": lambda: client.extend([pulled.receipt_handle], 60),
        }
        seal(cells, "b", "--topic", topic, "--group", group)
        (told,) = calls[how]()
        assert (told.error.code, told.error.reason) == (UNAVAILABLE.value[0], "MOVED")
        resume(cells)
        (told,) = calls[how]()
        assert not told.HasField("error")
        left: list[bytes] = []
        served(lambda: left.extend(each.message.body for each in client.pull(group, topic)))
        assert left == ([b"one"] if how == "nack" else [])

    def test_one_that_is_gone_is_told_so_when_the_move_is_over(self, client: CellClient, cells: Cells) -> None:
        settled, other = settled_at_home(client), client.topic_in("")
        seal(cells, "b", "--topic", other)
        assert client.ack([settled])[0].error.reason == "MOVED"
        resume(cells)
        await_gone(client, settled)

    def test_a_stream_whose_group_has_moved_ends_instead_of_telling_it(
        self, client: CellClient, another: CellClient, cells: Cells
    ) -> None:
        """It has no credits left, and so looks for nothing."""
        topic, group, settled = client.topic_in(""), client.group_in(""), settled_at_home(client)
        client.send(message(topic, "one"))
        subscribe = consumer_pb2.Subscribe(consumer_group=group, topics=[topic])
        subscribe.lease_duration.FromSeconds(60)
        outgoing: queue.SimpleQueue[consumer_pb2.ConsumeRequest] = queue.SimpleQueue()
        outgoing.put(consumer_pb2.ConsumeRequest(subscribe=subscribe))
        outgoing.put(consumer_pb2.ConsumeRequest(credits=consumer_pb2.GrantCredits(messages=1)))
        stream = client._consumer.Consume(iter(outgoing.get, None), timeout=PATIENCE + 2 * LONGEST)
        handle = next(
            response.deliveries.deliveries[0].receipt_handle for response in stream if response.HasField("deliveries")
        )
        seal(cells, "b", "--topic", topic, "--group", group)
        resume(cells)
        await_gone(client, settled)
        outgoing.put(consumer_pb2.ConsumeRequest(request_id=7, ack=consumer_pb2.AckRequest(receipt_handles=[handle])))
        with pytest.raises(grpc.RpcError) as ended:
            list(stream)
        assert reason(ended.value) == "MOVED"
        assert not another.ack([handle])[0].HasField("error")
