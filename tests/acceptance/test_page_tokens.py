"""Page tokens that nobody was given: they are refused, and take no more than the request did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from acceptance.client import PATIENCE, Client
from halfmq.v1 import admin_pb2, query_pb2
from support.brokers import BrokerProcess
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from pathlib import Path

    from google.protobuf.message import Message

SIZE = 30 * MIB
MOST_GROWTH = 300 * MIB


async def test_huge_page_tokens_are_refused(tmp_path: Path) -> None:
    with BrokerProcess(f"sqlite:///{tmp_path / 'halfmq.db'}") as broker:
        async with Client(broker.endpoint) as client:
            topic, group = await client.make_topic(), await client.make_group()
        requests: dict[str, Message] = {
            "QueryService/FindMessages": query_pb2.FindMessagesRequest(topic=topic, page_token="ab." * (SIZE // 3)),
            "AdminService/ListTransactions": admin_pb2.ListTransactionsRequest(page_token="ab." * (SIZE // 3)),
            "AdminService/ListDeadLetters": admin_pb2.ListDeadLettersRequest(group=group, page_token="1" * 5000),
        }
        with grpc.insecure_channel(broker.endpoint, compression=grpc.Compression.Gzip) as channel:
            for method, request in requests.items():
                forget_peak(broker.process.pid)
                before = resident(broker.process.pid)
                call: Any = channel.unary_unary(f"/halfmq.v1.{method}")
                try:
                    call(request.SerializeToString(), timeout=PATIENCE)
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (method, error)
                else:
                    raise AssertionError(method)
                grown = resident(broker.process.pid, peak=True) - before
                print(f"\n{method}: grown by {grown / MIB:.0f} MiB")
                assert grown < MOST_GROWTH, method
