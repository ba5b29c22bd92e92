"""Messages that were moved: where they are, by a broker that finds records of them in the cell that they left.

Brokers that were there before remember their queues; this one was started afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest

from cells.client import CellClient, reason
from cells.conftest import SETTINGS
from faults.client import COMMITTED, PATIENCE, message, new_id
from halfmq.v1 import admin_pb2, query_pb2
from support.brokers import BrokerProcess
from support.command import killed_when_it_tells, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cells.conftest import Cells
    from halfmq.v1 import message_pb2

DELIVERED = query_pb2.TIMELINE_EVENT_TYPE_DELIVERED
RELEASED = query_pb2.TIMELINE_EVENT_TYPE_RELEASED
GROUPS = ("one", "two", "three")
"""Message groups: of each topic, not all of them are in the same queue."""


@pytest.fixture
def newcomer(cells: Cells) -> Iterator[CellClient]:
    with (
        BrokerProcess(cells.home, {"HALFMQ_CELLS": f"b={cells.other}"}, broker_id="three", **SETTINGS) as broker,
        CellClient(broker.endpoint) as own,
    ):
        yield own


def move(cells: Cells, to: str, *names: str) -> None:
    variables = {"HALFMQ_DATABASE": cells.home, "HALFMQ_CELLS": f"b={cells.other}"}
    moved = run("cells", "move", "--to", to, *names, variables=variables)
    assert moved.returncode == 0, moved.stderr


def committed(client: CellClient, *topics: str) -> tuple[str, list[message_pb2.LogPosition]]:
    """A transaction with messages of several groups for each topic, and where they are."""
    own = new_id()
    halves = [message(topic, f"{topic} {group}", message_group=group) for topic in topics for group in GROUPS]
    client.prepare("shop", own, halves, check_after=60)
    places = list(client.commit(own).released)
    assert len({place.queue for place in places}) > 1
    return own, places


def places_of(client: CellClient, transaction_id: str) -> list[message_pb2.LogPosition]:
    return list(client.transaction(transaction_id).op.released)


def test_a_commit_that_is_repeated_after_the_move_tells_the_place(
    client: CellClient, cells: Cells, newcomer: CellClient
) -> None:
    topic = client.topic_in("", queues=4)
    own, places = committed(client, topic)
    move(cells, "b", "--topic", topic)
    repeated = newcomer.commit(own)
    assert (repeated.state, list(repeated.released)) == (COMMITTED, places)
    assert places_of(newcomer, own) == places
    assert places_of(client, own) == places


def test_a_transaction_that_is_resolved_again_after_the_move_tells_the_place(
    client: CellClient, cells: Cells, newcomer: CellClient
) -> None:
    topic = client.topic_in("", queues=4)
    own, places = committed(client, topic)
    move(cells, "b", "--topic", topic)
    request = admin_pb2.ResolveTransactionRequest(
        transaction_id=own, resolution=admin_pb2.RESOLUTION_COMMIT, reason="test", operator="test"
    )
    resolved = newcomer.admin.ResolveTransaction(request, timeout=PATIENCE).result
    assert (resolved.state, list(resolved.released)) == (COMMITTED, places)


def test_a_send_that_is_repeated_after_the_move_tells_the_place(
    client: CellClient, cells: Cells, newcomer: CellClient
) -> None:
    topic = client.topic_in("", queues=4)
    sent = [message(topic, group, message_group=group, message_id=new_id()) for group in GROUPS]
    places = [client.send(each) for each in sent]
    move(cells, "b", "--topic", topic)
    assert [newcomer.send(each) for each in sent] == places


def test_of_a_transaction_some_topics_of_which_have_moved_each_cell_tells_the_places_that_it_knows(
    client: CellClient, cells: Cells, newcomer: CellClient
) -> None:
    stays, moves = client.topic_in("", queues=4), client.topic_in("", queues=4)
    own, places = committed(client, stays, moves)
    move(cells, "b", "--topic", moves)
    assert list(newcomer.commit(own).released) == places
    assert places_of(newcomer, own) == places


def test_a_message_is_found_in_the_cell_that_it_moved_to(
    client: CellClient, cells: Cells, newcomer: CellClient
) -> None:
    topic = client.topic_in("", queues=4)
    own, _ = committed(client, topic)
    move(cells, "b", "--topic", topic)
    for each in (client, newcomer):
        assert each.message(own).message.body == f"{topic} one".encode()


def test_a_timeline_has_the_deliveries_of_all_cells(client: CellClient, cells: Cells, newcomer: CellClient) -> None:
    topic, group, later = client.topic_in(""), client.group_in(""), client.group_in("")
    own = client.send(message(topic, "first")).message_id
    names = ("--topic", topic, "--group", group, "--group", later)
    assert len(client.drain(group, topic)) == 1
    move(cells, "b", *names)
    assert len(newcomer.drain(later, topic)) == 1
    request = query_pb2.GetTimelineRequest(message_id=own)
    events = newcomer._queries.GetTimeline(request, timeout=PATIENCE).events
    # The name of the group went with it.
    assert [event.group for event in events if event.type == DELIVERED] == ["", later]
    assert [event.position.topic for event in events if event.type == RELEASED] == [topic]


def test_while_a_topic_is_on_its_way_its_place_is_not_known(
    client: CellClient, cells: Cells, newcomer: CellClient
) -> None:
    topic = client.topic_in("", queues=4)
    own, places = committed(client, topic)
    variables = {"HALFMQ_DATABASE": cells.home, "HALFMQ_CELLS": f"b={cells.other}"}
    killed_when_it_tells("sealed", "cells", "move", "--to", "b", "--topic", topic, variables=variables)
    repeated = newcomer.commit(own)
    assert repeated.state == COMMITTED
    assert [(place.topic, place.offset) for place in repeated.released] == [("", -1)] * len(places)
    for ask in (
        lambda: newcomer.transaction(own),
        lambda: newcomer.message(own),
        lambda: newcomer._queries.GetTimeline(query_pb2.GetTimelineRequest(message_id=own), timeout=PATIENCE),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            ask()
        assert (refused.value.code(), reason(refused.value)) == (grpc.StatusCode.UNAVAILABLE, "MOVED")
    resumed = run("cells", "move", "--resume", variables=variables)
    assert resumed.returncode == 0, resumed.stderr
    assert places_of(newcomer, own) == places


def test_the_place_of_a_message_of_a_deleted_topic_is_not_known(client: CellClient, newcomer: CellClient) -> None:
    topic = client.topic_in("", queues=4)
    own, places = committed(client, topic)
    client.delete_topic(topic)
    repeated = newcomer.commit(own)
    assert repeated.state == COMMITTED
    assert [(place.topic, place.offset) for place in repeated.released] == [("", -1)] * len(places)
    with pytest.raises(grpc.RpcError) as refused:
        newcomer.transaction(new_id())
    assert refused.value.code() in {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE}
