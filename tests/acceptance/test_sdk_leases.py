"""The SDK keeps the lease of a message for as long as its process lives; when it is killed, others get the message."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.client import Client
from acceptance.sdk_forms import Form, consumer, fill, lag, take

if TYPE_CHECKING:
    from support.brokers import BrokerProcess

HOLDING_CONSUMER = Path(__file__).with_name("holding_consumer.py")
# Extended every third of it: a machine may stand still for two seconds.
LEASE = 3.0


@pytest.mark.parametrize(("kind", "form"), [("sqlite", "sync"), ("mariadb", "asyncio"), ("mysql", "sync")])
async def test_a_held_message_goes_to_another_only_when_its_process_is_killed(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    held, ticks, group = await client.make_topic("held"), await client.make_topic("ticks"), await client.make_group()
    await fill(broker.endpoint, held, ["held"])
    command = [sys.executable, str(HOLDING_CONSUMER), broker.endpoint, group, held, str(LEASE), form]
    holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        await fill(broker.endpoint, ticks, ["tick"])
        async with consumer(form, broker.endpoint, group, [held, ticks]) as other:
            # The broker's own clock: it brings this back when two leases have passed, and would bring the other first.
            (tick,) = await take(other, 1)
            await other.nack(tick, delay=2 * LEASE)
            (tick,) = await take(other, 1)
            assert (tick.text, tick.attempt) == ("tick", 2)
            assert await other.receive(timeout=0) == []
            await other.ack(tick)
            assert holder.returncode is None
            holder.kill()
            (message,) = await take(other, 1)
            assert (message.text, message.attempt, message.last_error) == ("held", 2, None)
            await other.ack(message)
    finally:
        with suppress(ProcessLookupError):
            holder.kill()
        await holder.wait()
    assert await lag(client, held, group) == 0
