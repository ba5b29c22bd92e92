"""Requests that never arrive as a whole: they take a bounded part of a broker's memory, and nobody else waits."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from acceptance.client import PATIENCE, Client
from acceptance.streams import eventually
from broker.wire.interceptor import LARGEST_REQUEST
from support.half_sent import HalfSent
from support.memory import MIB, forget_peak, resident

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers import BrokerProcess

SEND = "/halfmq.v1.ProducerService/Send"
CONNECTIONS = 60
ALLOWED = 128 * MIB
# All of them would take 1.9 GB. Most are ended after a quarter of a second.
MOST_GROWTH = 900 * MIB


async def test_half_sent_requests_are_bounded_and_hold_up_nobody(
    tmp_path: Path, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}", max_request_bytes=ALLOWED)
    process = broker.process.pid
    async with Client(broker.endpoint) as client:
        topic = await client.make_topic()
        await client.send(topic, "before")
        before = resident(process)
        forget_peak(process)
        with ExitStack() as stack:
            calls = [
                stack.enter_context(
                    HalfSent(broker.endpoint, SEND, announced=LARGEST_REQUEST - 5, sending=LARGEST_REQUEST - MIB)
                )
                for _ in range(CONNECTIONS)
            ]

            async def ended() -> int:
                return sum(call.ended.is_set() for call in calls)

            await eventually(ended, lambda count: count >= CONNECTIONS - ALLOWED // 2 // LARGEST_REQUEST)
            for number in range(20):
                await client.send(topic, f"meanwhile {number}")
            peak = resident(process, peak=True) - before
            print(f"\ngrown by {peak / MIB:.0f} MiB at most; {await ended()} of {CONNECTIONS} ended")
            assert peak < MOST_GROWTH
        # When they hang up, nothing of them stays.
        await client.send(topic, "after")
        assert len(await client.bodies(topic)) == 22


async def test_a_request_that_announces_too_much_is_ended_at_once(
    tmp_path: Path, new_broker: Callable[..., BrokerProcess]
) -> None:
    broker = new_broker(f"sqlite:///{tmp_path / 'halfmq.db'}")
    with HalfSent(broker.endpoint, SEND, announced=1 << 31, sending=64 * MIB) as call:
        assert call.ended.wait(PATIENCE)
        assert call.sent < 2 * MIB
