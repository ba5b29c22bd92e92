"""Spans of checks that nobody answers, on a broker that sends them: each is sent, and soon."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from acceptance.client import COMMIT, Client, half, message, new_id
from support.brokers import BrokerProcess
from support.otlp import ReceivedSpan, TraceReceiver

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "shop"
CONTEXT = f"00-{1:032x}-{2:016x}-01"


def told(spans: list[ReceivedSpan]) -> list[tuple[str, int, str | None]]:
    """Of each span of a check: whom, its number, and the answer."""
    checks = [span.attributes for span in spans if span.name == "check orders"]
    return [
        (each["messaging.client.id"], each["messaging.halfmq.check_number"], each.get("messaging.halfmq.answer"))
        for each in checks
    ]


async def test_a_check_ends_with_its_producer_and_the_next_ones_with_their_answer(tmp_path: Path) -> None:
    with TraceReceiver() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        settings = {"first_check": 0.2, "check_interval": 0.2, "auto_create": True, "traces": True}
        database = f"sqlite:///{tmp_path / 'halfmq.db'}"
        with BrokerProcess(database, variables, **settings) as broker:
            async with Client(broker.endpoint) as client:
                dying = await client.answering(GROUP, "dying")
                transaction_id = new_id()
                order = message("orders", properties={"traceparent": CONTEXT})
                await client.prepare_items(GROUP, [half([order], transaction_id)])
                await dying.next()
                await dying.leave()
                await asyncio.to_thread(collector.until, lambda spans: ("dying", 1, None) in told(spans))
                living = await client.answering(GROUP, "living")
                await living.answer_all([transaction_id], COMMIT)
                received = await asyncio.to_thread(
                    collector.until, lambda spans: any(span.name == "release" for span in spans)
                )
    assert told(received)[-1][0::2] == ("living", "COMMIT")
