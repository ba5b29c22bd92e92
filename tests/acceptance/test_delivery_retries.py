"""What fails comes again after its group's delays, then becomes a dead letter, and can be delivered once more."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc
import pytest

from acceptance.client import Client, Pair, Refusal, message, unique
from acceptance.streams import Listener, eventually, handles, make_group, progress, seconds
from halfmq.v1 import admin_pb2, consumer_pb2, message_pb2, producer_pb2

if TYPE_CHECKING:
    from collections.abc import Sequence

# Seconds that the delays come to which a group has by default, of as many retries.
USUAL_DELAYS = 46.0
# How far brokers' ideas of the database's time may be apart while the machine is busy.
BETWEEN_CLOCKS = 0.1


# RocketMQ's, which a group has that names none.
DEFAULT = [1, 5, 10, 30, *(60 * minutes for minutes in range(1, 11)), 1200, 1800, 3600, 7200]


async def send(client: Client, topic: str, names: Sequence[str]) -> None:
    """Messages tagged with their first letter."""
    for start in range(0, len(names), 500):
        wanted = [message(topic, name, tag=name[0]) for name in names[start : start + 500]]
        results = (await client.call(client.producer.Send, producer_pb2.SendRequest(messages=wanted))).results
        assert not any(result.HasField("error") for result in results)


async def bury(pair: Pair, topic: str, group: str, *names: str) -> None:
    """Has a group that tries once give up messages, on both brokers by turns."""
    await send(pair[0], topic, names)
    buried = 0
    while buried < len(names):
        client = pair[buried % 2]
        deliveries = await client.pull(group, topic, 500)
        for each in ("no stock", "no money"):
            some = [d for d in deliveries if (d.message.tag == "b") == (each == "no money")]
            request = consumer_pb2.NackRequest(receipt_handles=handles(some), reason=each)
            if some:
                results = (await client.call(client.consumer.Nack, request)).results
                assert all(result.HasField("dead_letter") for result in results), results
        buried += len(deliveries)


async def letters(client: Client, group: str, **rest: object) -> list[admin_pb2.DeadLetter]:
    """All dead letters, by pages."""
    found: list[admin_pb2.DeadLetter] = []
    token = ""
    while True:
        request = admin_pb2.ListDeadLettersRequest(group=group, page_token=token, **rest)  # type: ignore[arg-type]
        page = await client.call(client.admin.ListDeadLetters, request)
        found += page.dead_letters
        if not (token := page.next_page_token):
            return found


async def redrive(client: Client, group: str, **rest: object) -> list[admin_pb2.RedriveDeadLettersResponse]:
    """All steps; the last one, and only that, has done set."""
    request = admin_pb2.RedriveDeadLettersRequest(group=group, **rest)  # type: ignore[arg-type]
    steps = await client.stream(client.admin.RedriveDeadLetters, request)
    assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
    return steps


@pytest.fixture
async def tired(pair: Pair) -> str:
    """A group that tries once."""
    return await make_group(pair[0], unique("tired"), max_attempts=1)


async def test_a_group_has_delays_of_its_own(pair: Pair) -> None:
    delays = [0.2, 0.5, 0.1]
    topic, group = (
        await pair[0].make_topic(),
        await make_group(pair[0], unique("readers"), delays=delays, max_attempts=5),
    )
    await send(pair[0], topic, ["a"])
    async with Listener(pair[0], group, topic, credits=0) as one, Listener(pair[1], group, topic, credits=0) as other:
        failed_at, waited = 0.0, []
        for attempt in range(1, 6):
            stream = (one, other)[attempt % 2]
            await stream.grant(1)
            await stream.until(lambda: len(stream.arrivals) == 1)  # noqa: B023 - waited for here
            waited.append(stream.arrivals[0].at - failed_at)
            (delivery,) = await stream.next()
            assert (delivery.attempt, delivery.last_error) == (attempt, f"failure {attempt - 1}" if attempt > 1 else "")
            failed_at = time.monotonic()
            (result,) = await stream.nack(delivery, reason=f"failure {attempt}", delay=None)
            assert result.HasField("dead_letter") == (attempt == 5)
    for took, delay in zip(waited[1:], [*delays, delays[-1]], strict=True):
        assert delay <= took + BETWEEN_CLOCKS
    assert sum(waited[1:]) < USUAL_DELAYS
    (letter,) = await letters(pair[1], group)
    assert (letter.reason, letter.attempts, letter.origin.offset) == ("failure 5", 5, 0)


async def test_what_a_group_is_told_of_its_delays(pair: Pair) -> None:
    plain, own = await pair[0].make_group(), await make_group(pair[0], unique("readers"), delays=[0, 7])

    async def told(group: str) -> tuple[list[float], int]:
        found = (await pair[1].call(pair[1].admin.DescribeGroup, admin_pb2.DescribeGroupRequest(group=group))).group
        return [seconds(each) for each in found.retry_delays], found.max_attempts

    assert await told(plain) == (DEFAULT, 17)
    assert await told(own) == ([0, 7], 17)
    request = admin_pb2.UpdateGroupRequest(group=own, retry_delays=admin_pb2.RetryDelays())
    await pair[0].call(pair[0].admin.UpdateGroup, request)
    assert await told(own) == (DEFAULT, 17)


async def test_dead_letters_tell_where_they_come_from(pair: Pair, tired: str) -> None:
    topic = await pair[0].make_topic()
    await bury(pair, topic, tired, "a0", "b1", "a2")
    found = sorted(await letters(pair[1], tired), key=lambda letter: letter.origin.offset)
    assert [letter.message.body for letter in found] == [b"a0", b"b1", b"a2"]
    assert [letter.reason for letter in found] == ["no stock", "no money", "no stock"]
    originals = await pair[0].log(topic)
    for letter, original in zip(found, originals, strict=True):
        origin = letter.origin
        assert (origin.topic, origin.queue, origin.offset) == (topic, 0, original.offset)
        assert (letter.attempts, letter.HasField("redriven_at"), letter.message.topic) == (1, False, f"%DLQ%{tired}")
        assert letter.message.tag == original.tag
    by_tag = await letters(pair[0], tired, filter=message_pb2.Filter(tags="b"))
    assert [letter.message.body for letter in by_tag] == [b"b1"]
    by_sql = await letters(
        pair[0], tired, filter=message_pb2.Filter(sql="halfmq.\"reason\" LIKE '%stock'"), page_size=1
    )
    assert sorted(letter.message.body for letter in by_sql) == [b"a0", b"a2"]


async def test_redrive_of_all_tells_how_far_it_is(pair: Pair, tired: str) -> None:
    topic, count = await pair[0].make_topic(), 700
    await bury(pair, topic, tired, *[f"a{number}" for number in range(count)])
    steps = await redrive(pair[1], tired)
    assert len(steps) > 1
    assert {step.total for step in steps} == {count}
    assert [step.examined for step in steps] == sorted({step.examined for step in steps})
    assert (steps[-1].examined, steps[-1].redriven, steps[-1].left, steps[-1].republished) == (count, count, 0, 0)
    # Once each, however often this is asked, and by whichever broker.
    again = (await redrive(pair[0], tired))[-1]
    assert (again.redriven, again.left) == (0, count)
    deliveries = await pair[0].pull(tired, topic, count, wait=5)
    assert sorted(each.message.offset for each in deliveries) == list(range(count))
    assert {(each.attempt, each.last_error) for each in deliveries} == {(1, "no stock")}
    assert all(letter.HasField("redriven_at") for letter in await letters(pair[0], tired, page_size=1000))
    # What fails again is another dead letter, and goes back again.
    request = consumer_pb2.NackRequest(receipt_handles=handles(deliveries[:1]), reason="again")
    await pair[1].call(pair[1].consumer.Nack, request)
    assert (await redrive(pair[1], tired))[-1].redriven == 1
    (only,) = await pair[0].pull(tired, topic, wait=5)
    assert (only.message.offset, only.last_error) == (deliveries[0].message.offset, "again")


async def test_redrive_of_some(pair: Pair, tired: str) -> None:
    topic = await pair[0].make_topic()
    await bury(pair, topic, tired, "a0", "b1", "c2", "c3")
    places = {letter.message.body: letter.message.offset for letter in await letters(pair[0], tired)}

    async def gets(*names: str) -> None:
        deliveries = await pair[1].pull(tired, topic, wait=5)
        assert sorted(each.message.body.decode() for each in deliveries) == list(names)
        await pair[1].call(pair[1].consumer.Ack, consumer_pb2.AckRequest(receipt_handles=handles(deliveries)))

    (*_, one) = await redrive(pair[0], tired, offsets=[places[b"c3"]])
    assert one.redriven == 1
    await gets("c3")
    (*_, tagged) = await redrive(pair[1], tired, filter=message_pb2.Filter(tags="b||c"))
    assert (tagged.redriven, tagged.left) == (2, 1)
    await gets("b1", "c2")
    (*_, sql) = await redrive(pair[0], tired, filter=message_pb2.Filter(sql="halfmq.tag = 'x'"))
    assert (sql.examined, sql.redriven) == (4, 0)
    assert await pair[1].pull(tired, topic) == []
    with pytest.raises(Refusal, match=r"filter\.sql") as refused:
        await redrive(pair[0], tired, filter=message_pb2.Filter(sql="halfmq.tag ="))
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(Refusal) as unknown:
        await redrive(pair[0], unique("nobody"))
    assert (unknown.value.code, unknown.value.reason) == (grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND")


async def test_redrive_while_consumers_run(pair: Pair, tired: str) -> None:
    """Every second message fails, and goes back again and again from both brokers: each is handled once in the end."""
    topic, count = await pair[0].make_topic(queues=2), 300
    handled: list[str] = []

    async def work(stream: Listener) -> None:
        while True:
            (delivery,) = await stream.next()
            body = delivery.message.body.decode()
            if delivery.last_error != "twice" and int(body[1:]) % 2:
                await stream.nack(delivery, reason="twice" if delivery.last_error else "once", delay=None)
            else:
                await stream.ack(delivery)
                handled.append(body)

    async def drive(client: Client) -> None:
        while len(handled) < count:
            await redrive(client, tired)

    async with Listener(pair[0], tired, topic) as one, Listener(pair[1], tired, topic) as other:
        working = [asyncio.create_task(work(stream)) for stream in (one, other)]
        driving = [asyncio.create_task(drive(client)) for client in pair]
        await send(pair[0], topic, [f"a{number}" for number in range(count)])
        await eventually(lambda: asyncio.sleep(0, len(handled)), lambda found: found >= count, patience=60)
        await asyncio.gather(*driving)
        for task in working:
            task.cancel()
        ended = await asyncio.gather(*working, return_exceptions=True)
        assert [each for each in ended if not isinstance(each, asyncio.CancelledError)] == []
    assert sorted(handled) == sorted(f"a{number}" for number in range(count))
    assert not any(each.lag for each in await progress(pair[0], tired))
    assert len(await letters(pair[0], tired, page_size=1000)) == count
