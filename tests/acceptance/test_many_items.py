"""Requests that are few bytes, and very many items once they are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acceptance.client import PATIENCE
from support.brokers import BrokerProcess
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import Iterator

ITEMS = 2_000_000
MOST_GROWTH = 300 * MIB
EMPTY = b"\x0a\x00"
EMPTY_MESSAGES = b"\x12\x00" * ITEMS


def varint(value: int) -> bytes:
    """A length, as it stands before what is so long."""
    text = bytearray()
    while value > 0x7F:
        text.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*text, value])


REQUESTS = {
    "messages": ("/halfmq.v1.ProducerService/Send", EMPTY * ITEMS),
    "commits": ("/halfmq.v1.TransactionService/Commit", EMPTY * ITEMS),
    "fewer commits": ("/halfmq.v1.TransactionService/Commit", EMPTY * (ITEMS // 4)),
    "rollbacks": ("/halfmq.v1.TransactionService/Rollback", EMPTY * ITEMS),
    "recalls": ("/halfmq.v1.ProducerService/Recall", EMPTY * ITEMS),
    "transactions": ("/halfmq.v1.TransactionService/Prepare", b"\x0a\x01g" + b"\x12\x00" * ITEMS),
    "half messages": (
        "/halfmq.v1.TransactionService/Prepare",
        b"\x0a\x01g\x12" + varint(len(EMPTY_MESSAGES)) + EMPTY_MESSAGES,
    ),
    "receipts": ("/halfmq.v1.ConsumerService/Ack", EMPTY * ITEMS),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(f"sqlite:///{tmp_path_factory.mktemp('items') / 'halfmq.db'}") as running:
        yield running


@pytest.mark.parametrize("name", REQUESTS)
def test_many_items_in_few_bytes_are_refused_before_they_are_decoded(broker: BrokerProcess, name: str) -> None:
    method, request = REQUESTS[name]
    pid = broker.process.pid
    with grpc.insecure_channel(broker.endpoint, compression=grpc.Compression.Gzip) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        forget_peak(pid)
        before = resident(pid)
        call: Any = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as refused:
            call(request, timeout=4 * PATIENCE)
        grown = resident(pid, peak=True) - before
    print(f"\n{name}: grown by {grown / MIB:.0f} MiB")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert grown < MOST_GROWTH
