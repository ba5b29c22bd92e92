"""How many calls one cell may have under way."""

from __future__ import annotations

import queue
from contextlib import closing

import grpc

from cells.client import CellClient, count
from faults.client import PATIENCE, message
from halfmq.v1 import consumer_pb2, producer_pb2
from support.brokers import BrokerProcess
from support.databases import connect, create_database, drop_database, server_url


def first_ended(calls: list[grpc.Future]) -> grpc.Future:
    ended: queue.SimpleQueue[grpc.Future] = queue.SimpleQueue()
    for call in calls:
        call.add_done_callback(ended.put)
    return ended.get(timeout=PATIENCE)


def test_a_call_may_create_a_group_in_a_cell_that_may_have_no_other_call() -> None:
    home, other = (create_database(server_url("mariadb")) for _ in range(2))
    settings = {"max_calls": 2, "client_calls": 2, "auto_create_groups": True}
    with (
        BrokerProcess(home, {"HALFMQ_CELLS": f"b={other}"}, **settings) as broker,
        CellClient(broker.endpoint) as client,
    ):
        request = consumer_pb2.CommitOffsetsRequest(topic=client.topic_in("b"), consumer_group="readers")
        request.queues.add(queue=0, offset=0)
        client._consumer.CommitOffsets(request, timeout=PATIENCE)
        assert count(other, "consumer_group", "name = 'readers'") == 1
    drop_database(home)
    drop_database(other)


def test_operators_calls_go_on_when_a_cell_has_as_many_calls_as_it_may() -> None:
    home, other = (create_database(server_url("mariadb")) for _ in range(2))
    settings = {"max_calls": 4, "client_calls": 4}
    with (
        BrokerProcess(home, {"HALFMQ_CELLS": f"b={other}"}, **settings) as broker,
        CellClient(broker.endpoint) as client,
    ):
        near, far = client.topic_in(""), client.topic_in("b")
        with closing(connect(home)) as own, own.cursor() as cursor:
            cursor.execute("SELECT queue_id FROM queue FOR UPDATE")
            request = producer_pb2.SendRequest(messages=[message(near, "1")])
            sends = [client.producer.Send.future(request, timeout=PATIENCE) for _ in range(3)]
            refused = first_ended(sends)
            assert refused.code() is grpc.StatusCode.UNAVAILABLE
            assert "under way" in refused.details()
            assert {near, far} <= client.topics().keys()
            client.send(message(far, "1"))
            own.rollback()
        assert sorted(send.code() is grpc.StatusCode.OK for send in sends) == [False, True, True]
    drop_database(home)
    drop_database(other)
