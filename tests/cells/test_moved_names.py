"""Names that were moved: apart from other tests, whose answers differ for a moment after a move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import bodies, count, reason
from faults.client import PATIENCE, message, new_id, unique
from halfmq.v1 import admin_pb2, sink_pb2
from support.command import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from cells.client import CellClient
    from cells.conftest import Cells


def repeated(call: Callable[[], object]) -> int:
    """Repeats a call that is told that its topic has moved, as clients do; how often."""
    for times in range(10):
        try:
            call()
        except grpc.RpcError as error:
            assert (error.code(), reason(error)) == (grpc.StatusCode.UNAVAILABLE, "MOVED")
        else:
            return times
    pytest.fail("told ten times that it has moved")


def test_a_sink_that_was_claimed_before_it_wrote_is_moved_to_its_topics(client: CellClient, cells: Cells) -> None:
    """As `halfmq cdc` begins: the command is in the refusal, and what was claimed holds in the other cell."""
    topic, name = client.topic_in("b"), unique("cdc-orders")
    for query in ("one", "two"):
        claim = sink_pb2.Epoch(sink=name, query_id=query, number=0, take_over=True)
        client.sinks.CommitEpoch(sink_pb2.CommitEpochRequest(epoch=claim), timeout=PATIENCE)

    def write(query: str) -> None:
        request = sink_pb2.CommitEpochRequest(
            epoch=sink_pb2.Epoch(sink=name, query_id=query, number=1), position=query.encode()
        )
        request.transactions.add(transaction_id=new_id(), messages=[message(topic, query)])
        client.sinks.CommitEpoch(request, timeout=PATIENCE)

    with pytest.raises(grpc.RpcError) as refused:
        write("two")
    assert reason(refused.value) == "TOPICS_APART"
    command = str(refused.value.details()).split("`")[1].split()
    assert command == ["halfmq", "cells", "move", "--to", "b", "--sink", name]
    moved = run(*command[1:], variables={"HALFMQ_DATABASE": cells.home, "HALFMQ_CELLS": f"b={cells.other}"})
    assert moved.returncode == 0, moved.stderr
    repeated(lambda: write("two"))
    with pytest.raises(grpc.RpcError) as refused:
        write("one")
    assert reason(refused.value) == "SINK_TAKEN"
    assert bodies(client, topic) == [b"two"]
    assert client.sinks.GetSink(sink_pb2.GetSinkRequest(sink=name), timeout=PATIENCE).sink.position == b"two"


def test_a_name_that_was_moved_away_and_deleted_is_created_where_it_was_first(client: CellClient, cells: Cells) -> None:
    topic = client.topic_in("b")
    client.send(message(topic, "first"))
    variables = {"HALFMQ_DATABASE": cells.home, "HALFMQ_CELLS": f"b={cells.other}"}
    moved = run("cells", "move", "--to", "home", "--topic", topic, variables=variables)
    assert moved.returncode == 0, moved.stderr
    gone = admin_pb2.DeleteTopicRequest(topic=topic)
    assert repeated(lambda: client.admin.DeleteTopic(gone, timeout=PATIENCE)) <= 1
    again = admin_pb2.CreateTopicRequest(topic=admin_pb2.Topic(name=topic, queue_count=1), cell="b")
    assert repeated(lambda: client.admin.CreateTopic(again, timeout=PATIENCE)) == 1
    repeated(lambda: client.send(message(topic, "anew")))
    assert bodies(client, topic) == [b"anew"]
    assert count(cells.other, "topic", f"name = '{topic}'") == 1
