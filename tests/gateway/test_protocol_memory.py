"""What RocketMQ's clients send takes a bounded part of a broker's memory, and nothing once it is refused."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.test_refused_memory import MOST_GROWTH, SIZE, broker_without_collector, growth, refused
from broker.rocketmq.protocol import Code, definition_pb2, service_pb2
from support.memory import MIB, forget_peak, resident
from support.rocketmq_protocol import Encoding, RawClient, Type, message

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess

pytest_plugins = ["support.rocketmq_fixtures"]

SERVICE = "/apache.rocketmq.v2.MessagingService/"
TOPIC = "orders"
BODY = 4 * MIB
BODIES, ROOM = 200, 64 * MIB


def large(**rest: Any) -> list[Any]:
    return [message("nowhere", b"\0" * (SIZE // 5), **rest) for _ in range(5)]


REFUSED: dict[str, tuple[str, Any]] = {
    "no such topic": ("SendMessage", service_pb2.SendMessageRequest(messages=large())),
    "of another type": ("SendMessage", service_pb2.SendMessageRequest(messages=large(message_type=Type.FIFO))),
    "half messages": ("SendMessage", service_pb2.SendMessageRequest(messages=large(message_type=Type.TRANSACTION))),
    "no name": ("Heartbeat", service_pb2.HeartbeatRequest(group=definition_pb2.Resource(name="x" * SIZE))),
    "no settings": (
        "Telemetry",
        service_pb2.TelemetryCommand(
            settings=definition_pb2.Settings(access_point=definition_pb2.Endpoints()),
            status=definition_pb2.Status(message="x" * SIZE),
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_requests_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    method, request = REFUSED[name]
    raw = request.SerializeToString()
    with broker_without_collector(tmp_path, "--rocketmq") as (endpoint, process):
        assert growth(endpoint, process, lambda: refused(endpoint, SERVICE + method, raw)) < MOST_GROWTH


async def test_packed_bodies_are_bounded_together(tmp_path: Path, new_broker: Callable[..., BrokerProcess]) -> None:
    broker = new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}", auto_create=True, max_request_bytes=ROOM)
    packed = gzip.compress(b"\0" * BODY)
    async with RawClient(broker.endpoint) as client:
        await client.send(message(TOPIC, b"first"))
        before = resident(broker.process.pid)
        forget_peak(broker.process.pid)
        answer = await client.send(*[message(TOPIC, packed, body_encoding=Encoding.GZIP) for _ in range(BODIES)])
        peak = resident(broker.process.pid, peak=True) - before
        print(f"\n{len(packed) * BODIES / MIB:.1f} MiB packed, grown by {peak / MIB:.0f} MiB at most")
        assert peak < BODIES * BODY // 2
        codes = [entry.status.code for entry in answer.entries]
        assert codes == [Code.OK] * codes.count(Code.OK) + [Code.TOO_MANY_REQUESTS] * codes.count(
            Code.TOO_MANY_REQUESTS
        )
        assert ROOM // BODY - 2 <= codes.count(Code.OK) <= ROOM // BODY
        # What there was no room for is taken later.
        again = await client.send(message(TOPIC, packed, body_encoding=Encoding.GZIP))
        assert again.status.code == Code.OK


async def test_filters_of_many_subscriptions_are_bounded_together(
    tmp_path: Path, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}", auto_create=True, auto_create_groups=True)
    async with RawClient(broker.endpoint) as client:
        await client.send(message(TOPIC, b"first"))

        async def state(number: int) -> None:
            # Each lasts for another time, so that it is a subscription of its own.
            tags = " || ".join(f"{number:04}{tag:06}" for tag in range(2000))
            received = await client.receive("readers", TOPIC, tags=tags, invisible=20 + number / 1000, wait=0.0)
            assert received.code == Code.MESSAGE_NOT_FOUND

        for number in range(20):
            await state(number)
        before = resident(broker.process.pid)
        for number in range(20, 1020):
            await state(number)
        grown = resident(broker.process.pid) - before
        print(f"\ngrown by {grown / MIB:.0f} MiB")
        assert grown < 96 * MIB
