"""Message groups with consumers of both forms, against real brokers: one after the other, whatever fails."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import PATIENCE, Client, unique
from acceptance.sdk_forms import LONG_LEASE, Form, admin, both_forms, consumer, lag, take, texts
from consumer_sdk import StaleReceipt, SubscriptionRefused
from producer_sdk import AsyncProducer, Message

if TYPE_CHECKING:
    from consumer_sdk import ReceivedMessage
    from support.brokers import BrokerProcess

NAMES = ["a", "b", "c", "d"]


async def fill_groups(endpoint: str, topic: str, names: list[str], count: int) -> None:
    async with AsyncProducer(endpoint) as sender:
        for number in range(count):
            await sender.send_many([Message(topic, f"{number}", message_group=name) for name in names])


class Tries:
    """A handler that fails on some messages at first, and remembers what it saw."""

    def __init__(self, failing: dict[str, int], until: int, stop: Any) -> None:
        self.seen: dict[str, list[str]] = defaultdict(list)
        self.handled = 0
        self._left = {(name, text): times for name in NAMES for text, times in failing.items()}
        self._until = until
        self._stop = stop
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._lock:
            name = message.message_group or ""
            self.seen[name].append(message.text)
            if self._left.get((name, message.text), 0) > 0:
                self._left[name, message.text] -= 1
                raise LookupError(f"not today: {message.text}")
            self.handled += 1
            if self.handled == self._until:
                self._stop()


@both_forms
@pytest.mark.parametrize("readers", [1, 2])
async def test_groups_keep_their_order_whatever_fails(
    form: Form, readers: int, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(queues=2), unique("readers")
    async with admin(form, broker.endpoint) as operator:
        await operator.create_group(group, retry_delays=[0.01])
    await fill_groups(broker.endpoint, topic, NAMES, 20)
    made = [
        consumer(form, broker.endpoint, group, topic, prefetch=30, lease_duration=LONG_LEASE) for _ in range(readers)
    ]
    tries = Tries({"3": 2, "4": 1, "12": 3}, 80, lambda: [reader.stop() for reader in made])

    async def coroutine(message: Any) -> None:
        tries(message)

    handler = tries if form == "sync" else coroutine
    async with asyncio.timeout(2 * PATIENCE):
        await asyncio.gather(*(_run(reader, handler) for reader in made))
    wanted = [f"{number}" for number in range(20) for _ in range({3: 3, 4: 2, 12: 4}.get(number, 1))]
    assert tries.seen == dict.fromkeys(NAMES, wanted)
    assert await lag(client, topic, group) == 0


async def _run(reader: Any, handler: Any) -> None:
    async with reader:
        await reader.run(handler, workers=6)


@both_forms
async def test_behind_a_dead_letter_the_group_goes_on_at_once(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), unique("readers")
    async with admin(form, broker.endpoint) as operator:
        await operator.create_group(group, retry_delays=[0], max_attempts=2)
    await fill_groups(broker.endpoint, topic, ["a"], 6)
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        tries = Tries({"2": 9}, 5, reader.stop)

        async def coroutine(message: Any) -> None:
            tries(message)

        async with asyncio.timeout(PATIENCE):
            await reader.run(tries if form == "sync" else coroutine, workers=3)
    assert tries.seen == {"a": ["0", "1", "2", "2", "3", "4", "5"]}
    assert await client.bodies(f"%DLQ%{group}") == ["2"]
    assert await lag(client, topic, group) == 0


@both_forms
async def test_what_was_taken_behind_a_nack_is_stale_and_comes_again(
    form: Form, client: Client, broker: BrokerProcess
) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill_groups(broker.endpoint, topic, ["a"], 5)
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as reader:
        first, second, third = await take(reader, 3)
        await reader.ack(first)
        await reader.nack(second, delay=0, reason="not now")
        with pytest.raises(StaleReceipt):
            await reader.ack(third)
        again = await take(reader, 4)
        assert texts(again) == ["1", "2", "3", "4"]
        assert [message.attempt for message in again] == [2, 1, 1, 1]
        assert [message.last_error for message in again][:1] == ["not now"]
        await reader.ack(again)
    assert await lag(client, topic, group) == 0


@both_forms
async def test_close_gives_a_group_back_in_order(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    await fill_groups(broker.endpoint, topic, ["a", "b"], 4)
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as first:
        held = await take(first, 3)
        await first.ack(held[0])
    async with consumer(form, broker.endpoint, group, topic, lease_duration=LONG_LEASE) as second:
        rest = await take(second, 7)
        by_group = defaultdict(list)
        for message in [held[0], *rest]:
            by_group[message.message_group].append(message.text)
        assert by_group == {"a": ["0", "1", "2", "3"], "b": ["0", "1", "2", "3"]}
        assert {message.attempt for message in rest} == {1}
        await second.ack(rest)
    assert await lag(client, topic, group) == 0


@both_forms
async def test_a_group_that_is_deleted_ends_its_consumers(form: Form, client: Client, broker: BrokerProcess) -> None:
    topic, group = await client.make_topic(), await client.make_group()
    async with (
        admin(form, broker.endpoint) as operator,
        consumer(form, broker.endpoint, group, topic) as reader,
    ):
        await reader.wait_until_subscribed(PATIENCE)
        waiting = asyncio.create_task(reader.receive(timeout=PATIENCE))
        await operator.delete_group(group)
        with pytest.raises(SubscriptionRefused) as refused:
            await waiting
        assert refused.value.reason == "GROUP_NOT_FOUND"
