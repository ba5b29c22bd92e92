"""The consuming service: a process that builds its own table from the messages it receives."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from consumer_sdk import AsyncConsumer, ConsumerError
from halfmq_cli.demo import stage
from halfmq_cli.demo.tables import RECEIVED_ROWS, SHIPMENTS, Row, Shape, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumer_sdk import AsyncReceivedMessage

BATCH = 1024


def order_row(message: AsyncReceivedMessage) -> Row:
    """An order, from its message."""
    order = json.loads(message.body)
    return tuple(order[name] for name, _ in SHIPMENTS.columns)


def plain_row(message: AsyncReceivedMessage) -> Row:
    """A row of the user's file, from its message: its number is the key, the body is the row."""
    return (int(message.keys[0]), message.text)


KINDS: dict[str, tuple[Shape, Callable[[AsyncReceivedMessage], Row]]] = {
    "orders": (SHIPMENTS, order_row),
    "rows": (RECEIVED_ROWS, plain_row),
}


async def consume(settings: dict[str, Any]) -> None:
    """Receives until the parent ends it; acknowledges messages only after its own transaction has committed."""
    shape, row_of = KINDS[settings["kind"]]
    view = View(settings["database"], settings["prefix"], shape)
    loop = asyncio.get_running_loop()
    ending = loop.run_in_executor(None, stage.wait_for_end)
    tag, applied, repeated, others = settings["tag"], 0, 0, 0
    rows_to_live: int | None = settings["rows_to_live"]
    consumer = AsyncConsumer(
        settings["endpoint"],
        settings["group"],
        settings["topic"],
        prefetch=4 * BATCH,
        lease_duration=settings["lease"],
        client_id=settings["client_id"],
    )
    async with consumer:
        while True:
            messages = await consumer.receive(BATCH, timeout=0.1)
            if not messages:
                if ending.done():
                    break
                continue
            # A topic that the user named may contain messages of other runs.
            rows = {message.message_id: row_of(message) for message in messages if message.tag == tag}
            new = await loop.run_in_executor(None, view.apply, rows) if rows else 0
            applied += new
            repeated += len(rows) - new
            others += len(messages) - len(rows)
            stage.say("consumed", applied=applied, repeated=repeated, others=others)
            if rows_to_live is not None and applied >= rows_to_live:
                stage.die()
            try:
                await consumer.ack(messages)
            except ConsumerError as error:
                # They are redelivered, and recognised then.
                stage.say("ack refused", error=str(error))
    view.close()


if __name__ == "__main__":
    asyncio.run(consume(stage.settings()))
