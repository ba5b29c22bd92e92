"""Messages of a message group are handled in their order, one at a time, by whichever consumer on whichever broker."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.client import PATIENCE, Client, Pair, half, message, unique
from acceptance.sdk_forms import Form, both_forms, consumer
from acceptance.streams import Listener, eventually, handles, make_group, progress
from halfmq.v1 import admin_pb2, consumer_pb2, producer_pb2

if TYPE_CHECKING:
    from support.databases import AnyKind
    from support.shared_brokers import Brokers


GROUPS = ["a", "b", "c", "d"]
STALE = {"RECEIPT_STALE", "RECEIPT_GONE"}


async def send(client: Client, topic: str, *names: str) -> None:
    """Sends messages such as "a1" (of message group a) and "-1" (of none)."""
    wanted = [message(topic, name, message_group="" if name[0] == "-" else name[0]) for name in names]
    results = (await client.call(client.producer.Send, producer_pb2.SendRequest(messages=wanted))).results
    assert not any(result.HasField("error") for result in results)


async def prepare(client: Client, topic: str, *names: str) -> str:
    """Half messages of one transaction, named as in send; its id."""
    wanted = [message(topic, name, message_group=name[0]) for name in names]
    (result,) = await client.prepare_items(unique("shop"), [half(wanted, check_after=600)])
    assert not result.HasField("error")
    return str(result.transaction_id)


async def orders_of(client: Client, topic: str, queues: int) -> dict[str, list[str]]:
    """What lies in the log, by message group and in its order."""
    found: dict[str, list[str]] = defaultdict(list)
    for queue in range(queues):
        for entry in await client.log(topic, queue):
            found[entry.message_group].append(entry.body.decode())
    return found


async def all_handled(client: Client, group: str) -> None:
    await eventually(lambda: progress(client, group), lambda found: found and not sum(each.lag for each in found))


class Unsteady:
    """A consumer that acks, nacks, returns and drops at random; `handled` is shared among several."""

    def __init__(self, chance: random.Random, handled: dict[str, list[str]]) -> None:
        self._chance = chance
        self._handled = handled

    async def work(self, client: Client, group: str, topic: str) -> None:
        """Until it is cancelled; now and then it hangs up with what it holds, and comes back."""
        while True:
            async with Listener(client, group, topic, credits=0, lease=1.0) as stream:
                for _ in range(self._chance.randrange(5, 20)):
                    wanted = self._chance.randrange(1, 12)
                    await stream.grant(wanted)
                    for _ in range(wanted):
                        (delivery,) = await stream.next()
                        await self._handle(stream, delivery)

    async def _handle(self, stream: Listener, delivery: consumer_pb2.Delivery) -> None:
        what, handle = self._chance.random(), handles([delivery])
        if what < 0.8:
            # Noted first: whoever gets the next one may be quicker than the outcome.
            mine = self._handled[delivery.message.message_group]
            mine.append(delivery.message.body.decode())
            place = len(mine) - 1
            (result,) = await stream.settle(ack=consumer_pb2.AckRequest(receipt_handles=handle))
            if result.HasField("error"):
                assert result.error.reason in STALE
                mine[place] = ""
            return
        nack = consumer_pb2.NackRequest(receipt_handles=handle, reason="not now", untried=what > 0.9)
        if not nack.untried:
            nack.delay.FromMicroseconds(0)
        (result,) = await stream.settle(nack=nack)
        assert result.error.reason in {"", *STALE}


@pytest.mark.parametrize("seed", range(2))
async def test_order_holds_whatever_two_consumers_on_two_brokers_do(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    topic = await pair[0].make_topic(queues=2)
    group = await make_group(pair[0], unique("readers"), max_attempts=1000)
    sent: dict[str, list[str]] = defaultdict(list)
    handled: dict[str, list[str]] = defaultdict(list)

    async def produce() -> None:
        for n in range(40):
            names = [f"{chance.choice(GROUPS)}{n}.{i}" for i in range(chance.randrange(1, 8))]
            if n % 2:
                await send(pair[n // 2 % 2], topic, *names)
            else:
                # The order is that of the release, not that of the preparation.
                other = await prepare(pair[0], topic, *[f"{name}+" for name in names])
                one = await prepare(pair[1], topic, *names)
                await pair[0].commit([one])
                await pair[1].commit([other])
                names += [f"{name}+" for name in names]
            for name in names:
                sent[name[0]].append(name)

    working = [asyncio.create_task(Unsteady(chance, handled).work(client, group, topic)) for client in pair]
    try:
        async with asyncio.timeout(4 * PATIENCE):
            await produce()
            await all_handled(pair[0], group)
    finally:
        for task in working:
            task.cancel()
        ended = await asyncio.gather(*working, return_exceptions=True)
    assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []
    assert await orders_of(pair[0], topic, 2) == sent
    assert {name: [each for each in bodies if each] for name, bodies in handled.items()} == sent


async def test_a_failing_message_blocks_its_group_only(pair: Pair) -> None:
    topic = await pair[0].make_topic()
    group = await make_group(pair[0], unique("readers"), delays=[1.0])
    await send(pair[1], topic, "a1", "a2", "b1", "-1")
    async with Listener(pair[0], group, topic) as one:
        first = {each.message.body.decode(): each for each in await one.next(4)}
        await one.nack(first["a1"], reason="no stock", delay=None)
        await one.ack(first["b1"], first["-1"])
        (late,) = await one.settle(ack=consumer_pb2.AckRequest(receipt_handles=handles([first["a2"]])))
        assert (late.error.reason, "an earlier message of its message group" in late.error.message) == (
            "RECEIPT_STALE",
            True,
        )
        async with Listener(pair[1], group, topic, acking=True) as other:
            await one.leave()
            await send(pair[0], topic, "a3", "b2", "-2", "c1")
            await other.until(lambda: len(other.arrivals) == 6)
            assert {name[0] for name in other.bodies[:3]} == {"b", "-", "c"}
            again = other.arrivals[3:]
            assert [each.body for each in again] == ["a1", "a2", "a3"]
            assert [(e.delivery.attempt, e.delivery.last_error) for e in again] == [(2, "no stock"), (1, ""), (1, "")]
    await all_handled(pair[0], group)


async def test_the_next_one_waits_for_the_lease_on_the_other_broker(pair: Pair) -> None:
    topic, group = await pair[0].make_topic(), await pair[0].make_group()
    one = await prepare(pair[0], topic, "a1", "a2")
    two = await prepare(pair[1], topic, "a3", "b1")
    await pair[0].commit([one])
    async with Listener(pair[0], group, topic) as first, Listener(pair[1], group, topic) as second:
        await eventually(lambda: asyncio.sleep(0, first.arrivals + second.arrivals), lambda came: len(came) == 2)
        holder, other = (first, second) if first.arrivals else (second, first)
        held = await holder.next(2)
        await holder.leave()
        await pair[1].commit([two])
        (unrelated,) = await other.next()
        assert unrelated.message.body == b"b1"
        assert await pair[0].pull(group, topic) == []
        request = consumer_pb2.AckRequest(receipt_handles=handles(held))
        await pair[1].call(pair[1].consumer.Ack, request)
        (last,) = await other.next()
        assert (last.message.body, last.attempt) == (b"a3", 1)


@pytest.mark.parametrize("policy", ["DEAD_LETTER", "RETRY"])
async def test_after_the_last_attempt(pair: Pair, policy: str) -> None:
    topic, name = await pair[0].make_topic(), unique("readers")
    group = await make_group(
        pair[0],
        name,
        delays=[0.01],
        max_attempts=2,
        when_exhausted=admin_pb2.ExhaustedPolicy.Value(f"EXHAUSTED_POLICY_{policy}"),
    )
    await send(pair[0], topic, "a1", "a2", "-1", "a3")
    seen: list[str] = []
    async with Listener(pair[0], group, topic) as one, Listener(pair[1], group, topic) as other:

        async def handle(stream: Listener) -> None:
            while True:
                (delivery,) = await stream.next()
                body = delivery.message.body.decode()
                seen.append(body)
                handle = handles([delivery])
                if body == "a2" and not (policy == "RETRY" and delivery.attempt == 6):
                    request = consumer_pb2.NackRequest(receipt_handles=handle, reason="broken")
                    await stream.settle(nack=request)
                else:
                    # Behind one that was given back: stale, and it comes again.
                    await stream.settle(ack=consumer_pb2.AckRequest(receipt_handles=handle))

        working = [asyncio.create_task(handle(stream)) for stream in (one, other)]
        await all_handled(pair[1], group)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    dead = await pair[1].log(f"%DLQ%{group}")
    assert sorted(set(seen)) == ["-1", "a1", "a2", "a3"]
    assert seen.count("a2") == (2 if policy == "DEAD_LETTER" else 6)
    assert seen[-1] == "a3" or seen[-2:] == ["a3", "-1"]
    if policy == "RETRY":
        assert dead == []
    else:
        (letter,) = dead
        assert (letter.body, letter.message_group, letter.properties["halfmq.reason"]) == (b"a2", "a", "broken")


@both_forms
async def test_run_with_several_workers_on_two_brokers(form: Form, kind: AnyKind, brokers: Brokers, pair: Pair) -> None:
    topic = await pair[0].make_topic(queues=2)
    group = await make_group(pair[0], unique("readers"), delays=[0.01])
    numbers = range(25)
    ids = []
    for n in numbers:
        ids.append(await prepare(pair[n % 2], topic, *[f"{name}{n}" for name in GROUPS]))
        await pair[n % 2].commit(ids[-1:])
    seen: dict[str, list[str]] = defaultdict(list)
    failing = {(name, f"{name}{n}") for name, n in zip("abc", [0, 7, 24], strict=True)}
    readers: list[Any] = []
    done = 0

    def handle(received: Any) -> None:
        nonlocal done
        name = received.message_group
        seen[name].append(received.text)
        if (name, received.text) in failing:
            failing.remove((name, received.text))
            raise LookupError(received.text)
        done += 1
        if done == len(GROUPS) * len(numbers):
            for reader in readers:
                reader.stop()

    async def coroutine(received: Any) -> None:
        handle(received)

    async def run(reader: Any) -> None:
        async with reader:
            await reader.run(handle if form == "sync" else coroutine, workers=5)

    endpoints = [brokers.shared(kind).endpoint, brokers.second(kind).endpoint]
    readers += [consumer(form, endpoint, group, topic, prefetch=20) for endpoint in endpoints]
    async with asyncio.timeout(2 * PATIENCE):
        await asyncio.gather(*map(run, readers))
    for name, twice in zip("abcd", [0, 7, 24, None], strict=True):
        assert seen[name] == [f"{name}{n}" for n in numbers for _ in range(2 if n == twice else 1)], name
    await all_handled(pair[0], group)
