"""A client that says in which cell topics and groups are to be."""

from __future__ import annotations

from contextlib import closing

import grpc

from faults.client import PATIENCE, Client, unique
from halfmq.v1 import admin_pb2, admin_pb2_grpc, producer_pb2, producer_pb2_grpc, sink_pb2_grpc, transaction_pb2_grpc
from support.databases import connect


class CellClient(Client):
    """One connection to one broker."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.producer = producer_pb2_grpc.ProducerServiceStub(self.channel)
        self.transactions = transaction_pb2_grpc.TransactionServiceStub(self.channel)
        self.sinks = sink_pb2_grpc.SinkServiceStub(self.channel)

    def topic_in(self, cell: str, queues: int = 1) -> str:
        """Creates a topic in a cell."""
        name = unique("orders")
        wanted = admin_pb2.Topic(name=name, queue_count=queues)
        self.admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=wanted, cell=cell), timeout=PATIENCE)
        return name

    def group_in(self, cell: str) -> str:
        """Creates a consumer group in a cell."""
        name = unique("readers")
        wanted = admin_pb2.ConsumerGroup(name=name)
        self.admin.CreateGroup(admin_pb2.CreateGroupRequest(group=wanted, cell=cell), timeout=PATIENCE)
        return name

    def sent(self, *messages: object, in_order: bool = False) -> list[producer_pb2.SendResult]:
        """Sends in one call; the result of each message."""
        request = producer_pb2.SendRequest(messages=messages, in_order=in_order)  # type: ignore[arg-type]
        return list(self.producer.Send(request, timeout=PATIENCE).results)


def count(url: str, table: str, where: str) -> int:
    """Rows of a cell's table."""
    with closing(connect(url)) as own, own.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {table} WHERE {where}")
        return int(cursor.fetchall()[0][0])


def bodies(client: CellClient, topic: str) -> list[bytes]:
    return sorted(each.body for entries in client.log(topic).values() for each in entries)


def reason(error: grpc.RpcError) -> str:
    return dict(error.trailing_metadata())["halfmq-reason"]
