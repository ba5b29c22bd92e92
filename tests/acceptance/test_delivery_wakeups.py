"""What one broker releases wakes consumers that wait on another one, soon and at a low price."""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from acceptance.client import PATIENCE, Client, Pair, half, message, unique
from acceptance.streams import Listener, eventually, handles
from faults.mysql_proxy import Delay, MySqlProxy, Rule
from halfmq.v1 import consumer_pb2, producer_pb2
from support.brokers import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from support.databases import AnyKind
    from support.shared_brokers import Brokers

ROUNDS = 30
# Whoever waits looks by itself after 15 s: what took this long was found, and nobody was woken for it.
FOUND = 12.0
WAITING = 50
# Twenty looks at all queues and four at the groups a second, each a few statements; the clock now and then.
MOST_STATEMENTS = 150.0


def told(what: str, taken: Sequence[float]) -> None:
    ordered = [round(each * 1e3) for each in sorted(taken)]
    print(f"\n{what}: median {statistics.median(ordered):.0f} ms, longest {ordered[-1]} ms; all: {ordered}")
    assert max(taken) < FOUND


@pytest.mark.parametrize("how", ["Send", "Commit", "scheduled"])
async def test_a_waiting_consumer_is_woken(pair: Pair, how: str) -> None:
    releasing, waiting = pair
    topic, group, shop = await releasing.make_topic(), await releasing.make_group(), unique("shop")
    after_answer, after_call = [], []
    async with Listener(waiting, group, topic, acking=True) as stream:
        for number in range(ROUNDS):
            wanted = message(topic, str(number))
            if how == "Commit":
                (prepared,) = await releasing.prepare_items(shop, [half([wanted], check_after=600)])
            began = time.monotonic()
            if how == "Commit":
                await releasing.commit([prepared.transaction_id])
            else:
                if how == "scheduled":
                    wanted.delay.FromMilliseconds(100 + 7 * number)
                    began += 0.1 + 0.007 * number
                await releasing.call(releasing.producer.Send, producer_pb2.SendRequest(messages=[wanted]))
            released = time.monotonic() if how != "scheduled" else began
            await stream.until(lambda wanted=number + 1: len(stream.arrivals) == wanted)  # type: ignore[misc]
            arrival = stream.arrivals[-1]
            assert arrival.body == str(number)
            # The answer and the message race to different places.
            after_answer.append(max(0.0, arrival.at - released))
            after_call.append(arrival.at - began)
    if how != "scheduled":
        print(f"\n{how}, from the call on: median {statistics.median(after_call) * 1e3:.0f} ms")
    told(f"{how} on one broker, delivery by the other one", after_answer)


async def test_a_pull_that_waits_is_woken(pair: Pair) -> None:
    releasing, waiting = pair
    topic, group = await releasing.make_topic(), await releasing.make_group()
    taken = []
    for number in range(ROUNDS):
        pulling = asyncio.create_task(waiting.pull(group, topic, wait=20))
        # It has joined and waits when the broker has answered what came after it on the same connection, twice.
        for _ in range(2):
            await waiting.call(
                waiting.consumer.QueueOffsets, consumer_pb2.QueueOffsetsRequest(topic=topic, consumer_group=group)
            )
        await releasing.send(topic, str(number))
        released = time.monotonic()
        (delivery,) = await pulling
        taken.append(max(0.0, time.monotonic() - released))
        assert delivery.message.body == str(number).encode()
        await waiting.call(waiting.consumer.Ack, consumer_pb2.AckRequest(receipt_handles=handles([delivery])))
    told("a waiting pull", taken)


class Counted:
    """Two brokers on a server; the statements of the second one are counted on their way."""

    def __init__(self, database: str) -> None:
        self.first = BrokerProcess(database)
        self._proxy = MySqlProxy.to(database).__enter__()
        self._rule: Rule = self._proxy.on_statement(".", when="before", action=Delay(0), times=None)
        self.second = BrokerProcess(self._proxy.url(database))

    @property
    def statements(self) -> int:
        return self._rule.fired

    async def per_second(self, count: int = 200) -> float:
        """How many statements a second it asks: the time that some of them take, in which nobody asks anything."""
        first, began = self.statements, time.monotonic()
        await asyncio.to_thread(self._rule.wait, PATIENCE, fired=first + count)
        return count / (time.monotonic() - began)

    def close(self) -> None:
        self._proxy.clear()
        self.second.close()
        self._proxy.close()
        self.first.close()


@pytest.fixture
def counted(server_kind: AnyKind, brokers: Brokers) -> Iterator[Counted]:
    made = Counted(brokers.database(server_kind))
    yield made
    made.close()
    for broker in (made.first, made.second):
        assert broker.count("[error") == 0, broker.log


async def test_many_who_wait_ask_no_more_than_one(counted: Counted) -> None:
    async with (
        Client(counted.first.endpoint) as one,
        Client(counted.second.endpoint) as other,
        AsyncExitStack() as stack,
    ):
        topics = [await one.make_topic() for _ in range(5)]
        groups = [await one.make_group() for _ in range(WAITING // 2)]
        alone = await stack.enter_async_context(Listener(other, groups[0], topics[0], acking=True))
        for_one = await counted.per_second()
        streams = [alone]
        for number in range(1, WAITING):
            listener = Listener(other, groups[number % len(groups)], topics[number % 5], acking=True)
            streams.append(await stack.enter_async_context(listener))
        # The first time, some of them still join.
        for_all = min([await counted.per_second() for _ in range(2)])

        before, taken = counted.statements, []
        for number in range(ROUNDS):
            came = sum(len(each.arrivals) for each in streams)
            await one.send(topics[number % 5], str(number))
            released = time.monotonic()
            readers = len({groups[n % len(groups)] for n in range(WAITING) if n % 5 == number % 5})
            await eventually(
                lambda: asyncio.sleep(0, sum(len(each.arrivals) for each in streams)),
                lambda found, wanted=came + readers: found >= wanted,
            )
            arrivals = [each.arrivals[-1].at for each in streams if each.arrivals and each.bodies[-1] == str(number)]
            assert len(arrivals) == readers
            taken.append(max(0.0, min(arrivals) - released))
        a_message = (counted.statements - before) / ROUNDS
        print(
            f"\nstatements a second: {for_one:.0f} with one that waits, {for_all:.0f} with {WAITING};"
            f" {a_message:.0f} a message for {readers} groups that take and settle it"
        )
        told(f"with {WAITING} who wait", taken)
    assert for_all < MOST_STATEMENTS
    assert for_all < 2 * for_one
